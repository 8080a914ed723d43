//! What distinguishes a block from another one, beside its ids.

use super::{MalformedEvents, read::Reader};

/// Extra keys of consecutive blocks, read one block at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraKeys<'a> {
    left: usize,
    rest: Reader<'a>,
}

/// The extra keys of one block, its LoRA adapter left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKeys<'a> {
    /// The block has no extra keys.
    None,
    /// One string: a cache salt, if the block is the first of a prompt.
    Salt(&'a str),
    /// Another key, such as that of an image: the ids do not identify the block.
    Other,
}

/// One of the keys of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key<'a> {
    /// A text that may be an adapter or a salt.
    Text(&'a str),
    /// A text that is marked as an adapter.
    Adapter(&'a str),
    /// A text that is marked as a salt.
    Salt(&'a str),
    Other,
}

/// The prefix that Dynamo's frontend adds to the salts that it passes to engines.
const SALT_PREFIX: &str = "dynamo-cache-salt:";

// === impl ExtraKeys ===

impl<'a> ExtraKeys<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, MalformedEvents> {
        if reader.nil()? {
            return Ok(Self::default());
        }
        let mut rest = reader.skipped()?;
        let left = rest.array()?;
        Ok(Self { left, rest })
    }

    /// The keys of the next block.
    pub fn next_block(&mut self, lora_name: Option<&str>) -> BlockKeys<'a> {
        let Some(left) = self.left.checked_sub(1) else {
            return BlockKeys::None;
        };
        self.left = left;
        Self::keys(&mut self.rest, lora_name).unwrap_or_else(|_| {
            // the beginning of the next keys is not known then
            self.rest = Reader::default();
            BlockKeys::Other
        })
    }

    fn keys(
        reader: &mut Reader<'a>,
        mut lora_name: Option<&str>,
    ) -> Result<BlockKeys<'a>, MalformedEvents> {
        if reader.nil()? {
            return Ok(BlockKeys::None);
        }
        let keys = if reader.is_array()? {
            reader.array()?
        } else {
            1
        };
        let mut found = BlockKeys::None;
        for _ in 0..keys {
            if reader.nil()? {
                continue;
            }
            let key = match Key::read(reader)? {
                // skipped once: a salt may have the name of the adapter
                Key::Text(text) if Some(text) == lora_name => {
                    lora_name = None;
                    continue;
                }
                Key::Adapter(name) if Some(name) == lora_name => continue,
                key => key,
            };
            found = match (found, key) {
                (BlockKeys::None, Key::Text(salt) | Key::Salt(salt)) => {
                    BlockKeys::Salt(salt.strip_prefix(SALT_PREFIX).unwrap_or(salt))
                }
                _ => BlockKeys::Other,
            };
        }
        Ok(found)
    }
}

// === impl Key ===

impl<'a> Key<'a> {
    /// Texts as they are, and keys that name their source, as arrays `[source, text, ..]` or as maps.
    fn read(reader: &mut Reader<'a>) -> Result<Self, MalformedEvents> {
        let start = *reader;
        if let Some(text) = reader.text_or_skip()? {
            return Ok(Self::Text(text));
        }
        Ok(Self::marked(start).unwrap_or(Self::Other))
    }

    fn marked(mut reader: Reader<'a>) -> Result<Self, MalformedEvents> {
        let (mut source, mut text) = (None, None);
        reader.each_field(&["type", "name"], |reader, name| {
            match name {
                "type" => source = reader.text_or_skip()?,
                "name" | "salt" => text = reader.text_or_skip()?,
                _ => reader.skip()?,
            }
            Ok(())
        })?;
        Ok(match (source, text) {
            (Some("lora"), Some(name)) => Self::Adapter(name),
            (Some("cache_salt"), Some(salt)) => Self::Salt(salt),
            _ => Self::Other,
        })
    }
}
