//! Text of bounded length that is paid for while it is written.

use minijinja::{Error, ErrorKind, State, Value, value::ValueKind};

use super::{Generator, invalid};

/// Bytes of the longest text that one value becomes, and of the longest prompt: as many as the largest body of a
/// client has by default, and some four million token ids.
pub(crate) const MAX_TEXT: usize = 16 << 20;

/// Levels of nesting in a value that is written or built; the values of a request have 128 at most.
pub(super) const MAX_DEPTH: usize = 200;

/// Bytes that one unit of fuel pays for. Writing a value walks it, so each byte costs four times what a copied byte
/// costs: the fuel of one rendering pays for 128 MiB, over all values together.
const BYTES_PER_FUEL: usize = 16;

/// Number of bytes that are charged together.
const PAID_TOGETHER: usize = 64 * BYTES_PER_FUEL;

/// The cost of visiting an item without writing it, in bytes.
pub(super) const ITEM_BYTES: usize = 16;

/// The budget that the work of writing is charged to.
pub(crate) trait Payer {
    /// # Errors
    /// When nothing is left to pay with.
    fn pay(&self, fuel: u64) -> Result<(), Error>;
}

/// A budget without a limit: only the length of the text bounds the work.
#[derive(Debug)]
pub(crate) struct Unpaid;

/// A text of at most `limit` bytes.
pub(crate) struct Writer<'a> {
    text: String,
    limit: usize,
    meter: Meter<'a>,
    /// Whether the limit was reached: the text is then the beginning of what was to be written.
    full: bool,
}

/// Collects small costs, so that not each byte is paid for by itself.
pub(super) struct Meter<'a> {
    payer: &'a dyn Payer,
    unpaid: usize,
}

// === impl Payer ===

impl Payer for State<'_, '_> {
    fn pay(&self, fuel: u64) -> Result<(), Error> {
        self.consume_fuel(fuel)
    }
}

impl Payer for Unpaid {
    fn pay(&self, _: u64) -> Result<(), Error> {
        Ok(())
    }
}

// === impl Writer ===

impl<'a> Writer<'a> {
    pub(crate) fn new(payer: &'a dyn Payer) -> Self {
        Self::with_limit(payer, MAX_TEXT)
    }

    pub(crate) fn with_limit(payer: &'a dyn Payer, limit: usize) -> Self {
        Self {
            text: String::new(),
            limit,
            meter: Meter::new(payer),
            full: false,
        }
    }

    /// # Errors
    /// When the text would be too long, or nothing is left to pay with.
    pub(crate) fn push_str(&mut self, text: &str) -> Result<(), Error> {
        let room = self.limit.saturating_sub(self.text.len());
        let fits = text.len() <= room;
        let taken = if fits {
            text
        } else {
            text.get(..text.floor_char_boundary(room))
                .unwrap_or_default()
        };
        self.meter.charge(taken.len())?;
        self.text.push_str(taken);
        if fits {
            Ok(())
        } else {
            self.full = true;
            Err(too_much())
        }
    }

    /// Writes one character, with the errors of [`Self::push_str`].
    pub(crate) fn push(&mut self, character: char) -> Result<(), Error> {
        self.push_str(character.encode_utf8(&mut [0; 4]))
    }

    /// Returns the whole text.
    pub(crate) fn finish(self) -> Result<String, Error> {
        self.meter.settle()?;
        Ok(self.text)
    }

    /// The text, or what of it there was room for; `written` is the result of writing it.
    pub(super) fn finish_cut(self, written: Result<(), Error>) -> Result<String, Error> {
        match written {
            Ok(()) => self.finish(),
            Err(_) if self.full => Ok(self.text + "…"),
            Err(error) => Err(error),
        }
    }
}

// === impl Meter ===

impl<'a> Meter<'a> {
    pub(super) fn new(payer: &'a dyn Payer) -> Self {
        Self { payer, unpaid: 0 }
    }

    pub(super) fn charge(&mut self, bytes: usize) -> Result<(), Error> {
        self.unpaid = self.unpaid.saturating_add(bytes);
        if self.unpaid < PAID_TOGETHER {
            return Ok(());
        }
        self.settle()?;
        self.unpaid = 0;
        Ok(())
    }

    pub(super) fn settle(&self) -> Result<(), Error> {
        let fuel = self.unpaid.div_ceil(BYTES_PER_FUEL);
        self.payer.pay(u64::try_from(fuel).unwrap_or(u64::MAX))
    }
}

pub(crate) fn too_much() -> Error {
    ErrorKind::OutOfFuel.into()
}

pub(super) fn too_deep() -> Error {
    invalid("a value is nested too deeply")
}

/// Visits all of a value that a template has built. Lists that share their items are visited as often as they are
/// written: what a template could not pay to write, it cannot build.
///
/// # Errors
/// When it is nested too deeply, or nothing is left to pay with.
pub(crate) fn check_built(value: &Value, payer: &dyn Payer) -> Result<(), Error> {
    let mut meter = Meter::new(payer);
    visit(value, &mut meter, 0)?;
    meter.settle()
}

fn visit(value: &Value, meter: &mut Meter<'_>, depth: usize) -> Result<(), Error> {
    meter.charge(ITEM_BYTES)?;
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    if let Some(generator) = value.downcast_object_ref::<Generator>() {
        // to iterate over it would use it up
        return generator
            .left()
            .iter()
            .try_for_each(|item| visit(item, meter, depth + 1));
    }
    for item in value.try_iter()? {
        visit(&item, meter, depth + 1)?;
        if kind == ValueKind::Map {
            visit(&value.get_item(&item)?, meter, depth + 1)?;
        }
    }
    Ok(())
}
