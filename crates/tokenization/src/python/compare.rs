//! Comparisons that are paid for by what they visit: values that share their items are as large as they are written.

use std::cmp::Ordering;

use minijinja::{
    Error, Value,
    value::{Tuple, ValueKind},
};

use super::{
    Generator, Payer, invalid, is_sequence_kind,
    writer::{ITEM_BYTES, MAX_DEPTH, Meter, too_deep},
};

/// Bytes of a text that cost as much as one byte that is written: to compare them is a copy's work at most.
const BYTES_OF_TEXT: usize = 4;

/// `left operator right`, where the operator is one of Python's.
///
/// # Errors
/// When it fails in Python, too, or nothing is left to pay with.
pub(crate) fn compare(
    left: &Value,
    operator: &str,
    right: &Value,
    payer: &dyn Payer,
) -> Result<bool, Error> {
    let mut meter = Meter::new(payer);
    let meter = &mut meter;
    let result = match operator {
        "==" => equal(left, right, meter, 0),
        "!=" => equal(left, right, meter, 0).map(|equal| !equal),
        "in" => contains(right, left, meter),
        "not in" => contains(right, left, meter).map(|found| !found),
        _ => order(left, right, meter, 0).map(|order| match operator {
            "<" => order == Some(Ordering::Less),
            "<=" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            ">" => order == Some(Ordering::Greater),
            _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }),
    }?;
    meter.settle()?;
    Ok(result)
}

/// Pays for what the library visits of a value, `times` times: to sort it, or to hash it.
///
/// # Errors
/// When it is nested too deeply, or nothing is left to pay with.
pub(crate) fn pay_for_visits(value: &Value, times: usize, payer: &dyn Payer) -> Result<(), Error> {
    let mut meter = Meter::new(payer);
    visit(value, times, &mut meter, 0)?;
    meter.settle()
}

fn visit(value: &Value, times: usize, meter: &mut Meter<'_>, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    let text = value.as_str().map_or(0, str::len) / BYTES_OF_TEXT;
    meter.charge(text.saturating_add(ITEM_BYTES).saturating_mul(times))?;
    let is_map = value.kind() == ValueKind::Map;
    let is_generator = value.downcast_object_ref::<Generator>().is_some();
    if is_generator || !(is_map || is_sequence_kind(value)) {
        return Ok(());
    }
    for item in value.try_iter()? {
        visit(&item, times, meter, depth + 1)?;
        if is_map {
            visit(&value.get_item(&item)?, times, meter, depth + 1)?;
        }
    }
    Ok(())
}

fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    Ok(())
}

fn is_tuple(value: &Value) -> bool {
    value.downcast_object_ref::<Tuple>().is_some()
}

/// Pays for two values that are compared, but for their items.
fn pay(left: &Value, right: &Value, meter: &mut Meter<'_>) -> Result<(), Error> {
    let text = match (left.as_str(), right.as_str()) {
        (Some(left), Some(right)) => left.len().min(right.len()) / BYTES_OF_TEXT,
        _ => 0,
    };
    meter.charge(text.saturating_add(ITEM_BYTES))
}

fn equal(left: &Value, right: &Value, meter: &mut Meter<'_>, depth: usize) -> Result<bool, Error> {
    check_depth(depth)?;
    pay(left, right, meter)?;
    let known_lengths_differ = || {
        let lengths = left.len().zip(right.len());
        lengths.is_some_and(|(left, right)| left != right)
    };
    if left.kind() == ValueKind::Map && right.kind() == ValueKind::Map {
        if known_lengths_differ() {
            return Ok(false);
        }
        for key in left.try_iter()? {
            visit(&key, 1, meter, depth + 1)?;
            let (item, other) = (left.get_item(&key)?, right.get_item(&key)?);
            if !equal(&item, &other, meter, depth + 1)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    if !(is_sequence_kind(left) && is_sequence_kind(right)) {
        return Ok(left == right);
    }
    let is_generator = |value: &Value| value.downcast_object_ref::<Generator>().is_some();
    if is_tuple(left) != is_tuple(right)
        || is_generator(left)
        || is_generator(right)
        || known_lengths_differ()
    {
        return Ok(false);
    }
    let (mut items, mut others) = (left.try_iter()?, right.try_iter()?);
    loop {
        match (items.next(), others.next()) {
            (None, None) => return Ok(true),
            (Some(item), Some(other)) if equal(&item, &other, meter, depth + 1)? => {}
            _ => return Ok(false),
        }
    }
}

/// Which of both is less, if they can be compared at all.
fn order(
    left: &Value,
    right: &Value,
    meter: &mut Meter<'_>,
    depth: usize,
) -> Result<Option<Ordering>, Error> {
    check_depth(depth)?;
    pay(left, right, meter)?;
    let kinds = [left.kind(), right.kind()];
    if kinds.contains(&ValueKind::Map) {
        return Err(invalid("objects have no order"));
    }
    if !(is_sequence_kind(left) && is_sequence_kind(right)) || is_tuple(left) != is_tuple(right) {
        return Ok(left.partial_cmp(right));
    }
    let (mut items, mut others) = (left.try_iter()?, right.try_iter()?);
    loop {
        match (items.next(), others.next()) {
            (None, other) => return Ok(Some(0.cmp(&usize::from(other.is_some())))),
            (Some(_), None) => return Ok(Some(Ordering::Greater)),
            (Some(item), Some(other)) => {
                if !equal(&item, &other, meter, depth + 1)? {
                    return order(&item, &other, meter, depth + 1);
                }
            }
        }
    }
}

fn contains(container: &Value, value: &Value, meter: &mut Meter<'_>) -> Result<bool, Error> {
    if let Some(text) = container.as_str() {
        meter.charge(text.len() / BYTES_OF_TEXT)?;
        let part = value.as_str();
        return part
            .map(|part| text.contains(part))
            .ok_or_else(|| invalid("only a string can be in a string"));
    }
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Map => {
            visit(value, 1, meter, 0)?;
            Ok(!container.get_item(value)?.is_undefined())
        }
        _ if is_sequence_kind(container) => {
            for item in container.try_iter()? {
                if equal(&item, value, meter, 0)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        kind => Err(invalid(&format!("nothing is in a value of kind {kind}"))),
    }
}
