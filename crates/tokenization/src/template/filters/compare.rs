//! Comparisons, and the filters that compare.

use minijinja::{
    Environment, Error, State, Value, filters,
    value::{Kwargs, Rest, ValueKind},
};

use crate::{
    python::{self, pay_for_visits},
    template::rewrite::{COMPARED, KEY},
};

/// The tests that compare, by their operators.
const TESTS: [(&str, &[&str]); 7] = [
    ("==", &["eq", "equalto", "=="]),
    ("!=", &["ne", "!="]),
    ("<", &["lt", "lessthan", "<"]),
    ("<=", &["le", "<="]),
    (">", &["gt", "greaterthan", ">"]),
    (">=", &["ge", ">="]),
    ("in", &["in"]),
];

/// Registers all that compares or hashes values.
pub(super) fn register(env: &mut Environment<'_>) {
    env.add_function(COMPARED, compared);
    env.add_function(KEY, key);
    for (operator, names) in TESTS {
        for name in names {
            env.add_test(
                *name,
                move |state: &State<'_, '_>, value: &Value, other: &Value| {
                    python::compare(value, operator, other, state)
                },
            );
        }
    }
    env.add_filter("unique", unique);
    env.add_filter("sort", sort);
    env.add_filter("dictsort", dictsort);
    env.add_filter("groupby", groupby);
    env.add_filter("min", min);
    env.add_filter("max", max);
}

/// `first operator second operator third ..`, as the arguments are.
fn compared(state: &State<'_, '_>, first: Value, rest: Rest<Value>) -> Result<bool, Error> {
    let mut left = &first;
    for pair in rest.chunks_exact(2) {
        let [operator, right] = pair else { break };
        let operator = operator.as_str().unwrap_or_default();
        if !python::compare(left, operator, right, state)? {
            return Ok(false);
        }
        left = right;
    }
    Ok(true)
}

/// Returns a key after it was paid for: to look it up visits all of it.
fn key(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    let is_scalar = !matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
    );
    if !is_scalar {
        pay_for_visits(&value, 1, state)?;
    }
    Ok(value)
}

/// Pays for as many visits of the items as a sort needs.
fn pay_for_sort(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let count = value.len().unwrap_or_default();
    let visits = usize::BITS.saturating_sub(count.leading_zeros());
    pay_for_visits(value, usize::try_from(visits).unwrap_or(1).max(1), state)
}

fn unique(state: &State<'_, '_>, values: Value, kwargs: Kwargs) -> Result<Value, Error> {
    pay_for_sort(state, &values)?;
    super::generator(&filters::unique(state, values, kwargs)?)
}

fn sort(state: &State<'_, '_>, value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    pay_for_sort(state, &value)?;
    filters::sort(state, value, kwargs)
}

fn dictsort(state: &State<'_, '_>, value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    pay_for_sort(state, value)?;
    filters::dictsort(value, kwargs)
}

fn groupby(
    state: &State<'_, '_>,
    value: Value,
    attribute: Option<&str>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    pay_for_sort(state, &value)?;
    filters::groupby(value, attribute, kwargs)
}

fn min(state: &State<'_, '_>, value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    pay_for_visits(&value, 1, state)?;
    filters::min(state, value, kwargs)
}

fn max(state: &State<'_, '_>, value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    pay_for_visits(&value, 1, state)?;
    filters::max(state, value, kwargs)
}
