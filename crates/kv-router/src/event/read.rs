//! `MessagePack` of bytes that anyone may have sent.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use rmp::Marker;

/// Why a message is no batch of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedEvents {
    /// It ends within a value.
    #[error("the message ends within a value")]
    Ends,
    /// A list, map or text claims more than there are bytes.
    #[error("{0} elements or bytes are announced and {1} bytes are left")]
    Claims(u64, usize),
    /// A batch has too many events; those above are not read.
    #[error("a batch has more than {0} events")]
    Events(usize),
    /// Something else is expected there.
    #[error("{0} is expected")]
    Expected(&'static str),
}

/// What is left to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

type Result<T> = std::result::Result<T, MalformedEvents>;

// === impl MalformedEvents ===

impl MalformedEvents {
    /// Stable, for metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Ends => "truncated",
            Self::Claims(..) | Self::Events(_) => "oversized",
            Self::Expected(_) => "wrong-type",
        }
    }
}

// === impl Reader ===

impl<'a> Reader<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    pub(super) fn is_array(&self) -> Result<bool> {
        let marker = self.peek()?;
        Ok(matches!(
            marker,
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32
        ))
    }

    /// Passes over a nil, if there is one.
    pub(super) fn nil(&mut self) -> Result<bool> {
        let is_nil = self.peek()? == Marker::Null;
        if is_nil {
            self.marker()?;
        }
        Ok(is_nil)
    }

    pub(super) fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.nil()? {
            return Ok(None);
        }
        read(self).map(Some)
    }

    /// The elements of an array, none of which were read yet. Each has a byte at least.
    pub(super) fn array(&mut self) -> Result<usize> {
        let len = match self.marker()? {
            Marker::FixArray(len) => len.into(),
            Marker::Array16 => self.number(2)?,
            Marker::Array32 => self.number(4)?,
            _ => return Err(MalformedEvents::Expected("an array")),
        };
        self.fits(len)
    }

    pub(super) fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let len = self.array()?;
        let mut list = Vec::with_capacity(len);
        for _ in 0..len {
            list.push(read(self)?);
        }
        Ok(list)
    }

    /// Calls `read` for each field of a map, or for each element of an array with the name at its place, which is empty
    /// behind the last name; `read` reads or skips one value.
    pub(super) fn each_field(
        &mut self,
        names: &[&'static str],
        mut read: impl FnMut(&mut Self, &str) -> Result<()>,
    ) -> Result<()> {
        if self.is_array()? {
            for at in 0..self.array()? {
                read(self, names.get(at).copied().unwrap_or_default())?;
            }
            return Ok(());
        }
        let len = match self.marker()? {
            Marker::FixMap(len) => len.into(),
            Marker::Map16 => self.number(2)?,
            Marker::Map32 => self.number(4)?,
            _ => return Err(MalformedEvents::Expected("an array or a map")),
        };
        for _ in 0..self.fits(len)? {
            let name = self.text_or_skip()?.unwrap_or_default();
            read(self, name)?;
        }
        Ok(())
    }

    /// An integer; a negative one as the same 64 bits.
    pub(super) fn int(&mut self) -> Result<u64> {
        Ok(match self.marker()? {
            Marker::FixPos(value) => value.into(),
            Marker::FixNeg(value) => i64::from(value).cast_unsigned(),
            Marker::U8 => self.number(1)?,
            Marker::U16 => self.number(2)?,
            Marker::U32 => self.number(4)?,
            Marker::U64 | Marker::I64 => self.number(8)?,
            Marker::I8 => self.signed(1)?,
            Marker::I16 => self.signed(2)?,
            Marker::I32 => self.signed(4)?,
            _ => return Err(MalformedEvents::Expected("an integer")),
        })
    }

    /// Reads an integer and skips any other value.
    pub(super) fn int_or_skip(&mut self) -> Result<Option<u64>> {
        let mut ahead = *self;
        if let Ok(value) = ahead.int() {
            *self = ahead;
            return Ok(Some(value));
        }
        self.skip()?;
        Ok(None)
    }

    /// Skips one value, and returns whether it was nil.
    pub(super) fn nil_or_skip(&mut self) -> Result<bool> {
        let is_nil = self.nil()?;
        if !is_nil {
            self.skip()?;
        }
        Ok(is_nil)
    }

    /// Token ids, none for nil, and the place of the first that is no id of a vocabulary.
    ///
    /// Speculative decoding with pairs of ids as keys publishes `[id, next id]` for each id; a pair is read as its first. A
    /// text, a negative number or one above 32 bits stands for something that is no text.
    pub(super) fn ids(&mut self) -> Result<(Vec<u32>, Option<usize>)> {
        let mut opaque_from = None;
        if self.nil()? {
            return Ok((Vec::new(), None));
        }
        let len = self.array()?;
        let mut ids = Vec::with_capacity(len);
        for at in 0..len {
            let id = self.id_or_skip()?;
            if id.is_none() && opaque_from.is_none() {
                opaque_from = Some(at);
            }
            ids.push(id.unwrap_or(0));
        }
        Ok((ids, opaque_from))
    }

    fn id_or_skip(&mut self) -> Result<Option<u32>> {
        if !self.is_array()? {
            let id = self.int_or_skip()?;
            return Ok(id.and_then(|id| u32::try_from(id).ok()));
        }
        let mut pair = self.skipped()?;
        let first = match pair.array()? {
            2 => pair.int_or_skip()?,
            _ => None,
        };
        Ok(first.and_then(|id| u32::try_from(id).ok()))
    }

    /// An engine's name of a block: an integer, or the last 8 of some bytes.
    pub(super) fn hash(&mut self) -> Result<u64> {
        let mut ahead = *self;
        let len = match ahead.marker()? {
            Marker::Bin8 => ahead.number(1)?,
            Marker::Bin16 => ahead.number(2)?,
            Marker::Bin32 => ahead.number(4)?,
            _ => return self.int(),
        };
        let bytes = ahead.take(len)?;
        *self = ahead;
        let last = bytes.iter().rev().take(8).rev();
        Ok(last.fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    pub(super) fn text(&mut self) -> Result<&'a str> {
        self.text_or_skip()?
            .ok_or(MalformedEvents::Expected("a text"))
    }

    /// A text; anything else is skipped.
    pub(super) fn text_or_skip(&mut self) -> Result<Option<&'a str>> {
        let mut ahead = *self;
        let len = match ahead.marker()? {
            Marker::FixStr(len) => len.into(),
            Marker::Str8 => ahead.number(1)?,
            Marker::Str16 => ahead.number(2)?,
            Marker::Str32 => ahead.number(4)?,
            _ => {
                self.skip()?;
                return Ok(None);
            }
        };
        let bytes = ahead.take(len)?;
        *self = ahead;
        let text = std::str::from_utf8(bytes);
        text.map(Some)
            .map_err(|_| MalformedEvents::Expected("UTF-8"))
    }

    /// A number of any kind; anything else is skipped.
    pub(super) fn number_or_skip(&mut self) -> Result<Option<f64>> {
        let mut ahead = *self;
        let number = match ahead.marker()? {
            Marker::F64 => Some(f64::from_bits(ahead.number(8)?)),
            Marker::F32 => u32::try_from(ahead.number(4)?)
                .ok()
                .map(|bits| f32::from_bits(bits).into()),
            _ => {
                ahead = *self;
                ahead.int().ok().map(|number| number as f64)
            }
        };
        if number.is_some() {
            *self = ahead;
        } else {
            self.skip()?;
        }
        Ok(number)
    }

    /// Passes over one value, however deep it is, without recursion.
    pub(super) fn skip(&mut self) -> Result<()> {
        let mut values = 1_u64;
        while let Some(left) = values.checked_sub(1) {
            let marker = self.marker()?;
            let (inner, bytes) = match marker {
                Marker::FixArray(len) => (len.into(), 0),
                Marker::Array16 => (self.number(2)?, 0),
                Marker::Array32 => (self.number(4)?, 0),
                Marker::FixMap(len) => (u64::from(len).saturating_mul(2), 0),
                Marker::Map16 => (self.number(2)?.saturating_mul(2), 0),
                Marker::Map32 => (self.number(4)?.saturating_mul(2), 0),
                marker => (0, self.length(marker)?),
            };
            self.take(bytes)?;
            values = left.saturating_add(inner);
            self.fits(values)?;
        }
        Ok(())
    }

    /// Passes over one value; that alone.
    pub(super) fn skipped(&mut self) -> Result<Self> {
        let all = self.rest;
        self.skip()?;
        let len = all.len().saturating_sub(self.rest.len());
        let rest = all.get(..len).unwrap_or_default();
        Ok(Self { rest })
    }

    /// Bytes behind the marker of what is neither array nor map.
    fn length(&mut self, marker: Marker) -> Result<u64> {
        Ok(match marker {
            Marker::U8 | Marker::I8 => 1,
            Marker::U16 | Marker::I16 | Marker::FixExt1 => 2,
            Marker::FixExt2 => 3,
            Marker::U32 | Marker::I32 | Marker::F32 => 4,
            Marker::FixExt4 => 5,
            Marker::U64 | Marker::I64 | Marker::F64 => 8,
            Marker::FixExt8 => 9,
            Marker::FixExt16 => 17,
            Marker::FixStr(len) => len.into(),
            Marker::Str8 | Marker::Bin8 => self.number(1)?,
            Marker::Str16 | Marker::Bin16 => self.number(2)?,
            Marker::Str32 | Marker::Bin32 => self.number(4)?,
            Marker::Ext8 => self.number(1)?.saturating_add(1),
            Marker::Ext16 => self.number(2)?.saturating_add(1),
            Marker::Ext32 => self.number(4)?.saturating_add(1),
            Marker::Reserved => return Err(MalformedEvents::Expected("a value")),
            _ => 0,
        })
    }

    fn peek(&self) -> Result<Marker> {
        let first = self.rest.first().ok_or(MalformedEvents::Ends)?;
        Ok(Marker::from_u8(*first))
    }

    fn marker(&mut self) -> Result<Marker> {
        let (first, rest) = self.rest.split_first().ok_or(MalformedEvents::Ends)?;
        self.rest = rest;
        Ok(Marker::from_u8(*first))
    }

    fn take(&mut self, bytes: u64) -> Result<&'a [u8]> {
        let len = self.fits(bytes)?;
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(MalformedEvents::Ends)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A big-endian number of up to 8 bytes.
    fn number(&mut self, bytes: u8) -> Result<u64> {
        let (taken, rest) = self
            .rest
            .split_at_checked(bytes.into())
            .ok_or(MalformedEvents::Ends)?;
        self.rest = rest;
        Ok(taken
            .iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// The same with its sign carried on to 64 bits.
    fn signed(&mut self, bytes: u8) -> Result<u64> {
        let unused = 64_u32.saturating_sub(u32::from(bytes).saturating_mul(8));
        let value = self.number(bytes)? << unused;
        Ok((value.cast_signed() >> unused).cast_unsigned())
    }

    fn fits(&self, count: u64) -> Result<usize> {
        let left = self.rest.len();
        let count_here = usize::try_from(count).ok().filter(|it| *it <= left);
        count_here.ok_or(MalformedEvents::Claims(count, left))
    }
}
