//! Filters, tests and functions as Python's renderer has them, where the library's own differ or are not bounded.

mod compare;
mod text;

use std::borrow::Cow;

use minijinja::{
    Environment, Error, State, Value, filters, functions,
    value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs},
};

use super::rewrite::BUILT;
use crate::{
    json::Map,
    python::{self, Dict, Generator, List, check_built, invalid, pay_for_visits},
};

/// Filters that the library has and Python's renderer does not have. `pprint` breaks lines in its own way.
const UNKNOWN_FILTERS: [&str; 6] = ["bool", "chain", "lines", "pprint", "split", "zip"];

/// Registers all filters.
pub(super) fn register(env: &mut Environment<'_>) {
    for name in UNKNOWN_FILTERS {
        env.remove_filter(name);
    }
    // this function prints all variables
    env.remove_global("debug");
    env.add_function(BUILT, built);
    env.add_function("dict", dict);
    env.add_function("namespace", namespace);
    compare::register(env);
    text::register(env);
    env.add_filter("batch", batch);
    env.add_filter("slice", slice);
    env.add_filter("items", items);
    env.add_filter("map", map);
    env.add_filter("select", select);
    env.add_filter("reject", reject);
    env.add_filter("selectattr", selectattr);
    env.add_filter("rejectattr", rejectattr);
    env.add_filter("reverse", reverse);
    env.add_filter("last", last);
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    env.add_test("sequence", is_sequence);
    env.add_test("integer", |value: &Value| {
        value.kind() == ValueKind::Number && value.is_integer()
    });
}

/// A list, tuple or object that the template has built, as the request's own are.
fn built(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    check_built(&value, state)?;
    match value.kind() {
        ValueKind::Seq if value.downcast_object_ref::<Tuple>().is_none() => {
            Ok(Value::from_object(List(value.try_iter()?.collect())))
        }
        ValueKind::Map => {
            let mut map = Map::new();
            for key in value.try_iter()? {
                let item = value.get_item(&key)?;
                map.insert(key, item);
            }
            Ok(Value::from_object(Dict(map)))
        }
        _ => Ok(value),
    }
}

fn dict(state: &State<'_, '_>, value: Option<Value>, update_with: Kwargs) -> Result<Value, Error> {
    if let Some(value) = &value {
        pay_for_visits(value, 1, state)?;
    }
    built(state, functions::dict(value, update_with)?)
}

fn namespace(state: &State<'_, '_>, defaults: Option<ValueOrKwargs>) -> Result<Value, Error> {
    let namespace = functions::namespace(defaults)?;
    check_built(&namespace, state)?;
    Ok(namespace)
}

/// A generator of values that exist already.
fn generator(items: &Value) -> Result<Value, Error> {
    Ok(Generator::value(items.try_iter()?.collect()))
}

fn batch(
    state: &State<'_, '_>,
    value: Value,
    count: usize,
    fill_with: Option<Value>,
) -> Result<Value, Error> {
    let batches = filters::batch(state, value, count, fill_with)?;
    check_built(&batches, state)?;
    generator(&batches)
}

fn slice(
    state: &State<'_, '_>,
    value: Value,
    count: usize,
    fill_with: Option<Value>,
) -> Result<Value, Error> {
    let slices = filters::slice(state, value, count, fill_with)?;
    check_built(&slices, state)?;
    generator(&slices)
}

fn items(value: &Value) -> Result<Value, Error> {
    generator(&filters::items(value)?)
}

fn map(
    state: &mut State<'_, '_>,
    value: Value,
    arguments: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    filters::map(state, value, arguments).map(Generator::value)
}

fn select(
    state: &mut State<'_, '_>,
    value: Value,
    test: Option<Cow<'_, str>>,
    arguments: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    filters::select(state, value, test, arguments).map(Generator::value)
}

fn reject(
    state: &mut State<'_, '_>,
    value: Value,
    test: Option<Cow<'_, str>>,
    arguments: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    filters::reject(state, value, test, arguments).map(Generator::value)
}

fn selectattr(
    state: &mut State<'_, '_>,
    value: Value,
    attribute: Cow<'_, str>,
    test: Option<Cow<'_, str>>,
    arguments: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    filters::selectattr(state, value, attribute, test, arguments).map(Generator::value)
}

fn rejectattr(
    state: &mut State<'_, '_>,
    value: Value,
    attribute: Cow<'_, str>,
    test: Option<Cow<'_, str>>,
    arguments: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    filters::rejectattr(state, value, attribute, test, arguments).map(Generator::value)
}

/// An iterator over a list backwards, which is true and gone through once; of a generator a list.
fn reverse(value: &Value) -> Result<Value, Error> {
    let was_generator = value.downcast_object_ref::<Generator>().is_some();
    let reversed = filters::reverse(value)?;
    match reversed.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            let items = reversed.try_iter()?.collect();
            Ok(if was_generator {
                Value::from_object(List(items))
            } else {
                Generator::value(items)
            })
        }
        _ => Ok(reversed),
    }
}

fn last(value: Value) -> Result<Value, Error> {
    if value.downcast_object_ref::<Generator>().is_some() {
        return Err(invalid("a generator cannot be reversed"));
    }
    filters::last(value)
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.downcast_object_ref::<Generator>().is_some() {
        return Err(invalid("a generator has no length"));
    }
    filters::length(value)
}

/// What has a length and items by number or key: also strings, objects, and what is undefined.
fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map => true,
        ValueKind::Iterable => python::is_list(value),
        _ => false,
    }
}
