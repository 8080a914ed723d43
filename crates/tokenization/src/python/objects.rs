//! Objects of Python that templates see.

use std::{fmt, sync::Arc, vec};

use minijinja::{
    Value,
    value::{Enumerator, Object, ObjectExt, ObjectRepr},
};
use parking_lot::Mutex;

use super::{Unpaid, str};
use crate::json::Map;

/// A list that prints as in Python wherever it is made a string.
#[derive(Debug)]
pub(crate) struct List(pub(crate) Vec<Value>);

/// A JSON object that prints as a Python `dict` wherever it is made a string.
#[derive(Debug)]
pub(crate) struct Dict(pub(crate) Map);

/// The result of filters such as `map` and `select`: it is true even when it is empty, and can be iterated over once.
#[derive(Debug)]
pub(crate) struct Generator(Arc<Mutex<vec::IntoIter<Value>>>);

/// The result of `items()`, `keys()` or `values()` of an object.
#[derive(Debug)]
pub(crate) struct View {
    /// The name of the type as Python prints it.
    pub(super) name: &'static str,
    items: Vec<Value>,
}

/// A method that is named and not called: it is true, and has no attributes that a template may see.
#[derive(Debug)]
pub(super) struct Method;

/// The items of a generator that are left.
struct Rest(Arc<Mutex<vec::IntoIter<Value>>>);

// === impl List ===

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(Value::from_dyn_object(self.clone()), f)
    }
}

// === impl Dict ===

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_rev_enumerator(|this| Box::new(this.0.keys().cloned()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(Value::from_dyn_object(self.clone()), f)
    }
}

// === impl Generator ===

impl Generator {
    /// A generator of these items.
    pub(crate) fn value(items: Vec<Value>) -> Value {
        Value::from_object(Self(Arc::new(Mutex::new(items.into_iter()))))
    }

    /// The items that were not consumed yet.
    pub(super) fn left(&self) -> Vec<Value> {
        self.0.lock().as_slice().to_vec()
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(Rest(self.0.clone())))
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

// === impl Rest ===

impl Iterator for Rest {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.0.lock().next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.lock().size_hint()
    }
}

// === impl View ===

impl View {
    pub(super) fn value(name: &'static str, items: Vec<Value>) -> Value {
        Value::from_object(Self { name, items })
    }
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_rev_enumerator(|this| Box::new(this.items.iter().cloned()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(Value::from_dyn_object(self.clone()), f)
    }
}

// === impl Method ===

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

fn render(value: Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(&str(&value, &Unpaid).map_err(|_| fmt::Error)?)
}
