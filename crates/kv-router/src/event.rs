//! What engines publish of their KV caches: batches of events in `MessagePack`.
//!
//! Batches and events come as arrays or as maps, in any mix; tails may be missing and what is unknown is ignored. Nothing
//! is allocated for what the bytes cannot hold.

use self::read::Reader;

mod read;

#[cfg(test)]
mod tests;

pub use read::MalformedEvents;

/// Where a block is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tier {
    /// In the accelerator's memory.
    #[default]
    Gpu,
    /// In the host's memory.
    Host,
    /// Anywhere else.
    Disk,
}

/// A message of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch<'a> {
    /// What happened, in order; events of unknown kinds are left out.
    pub events: Vec<Event<'a>>,
    /// The data-parallel rank that it says it is of.
    pub rank: Option<u64>,
    /// When it was made, in seconds since 1970 by the engine's clock.
    pub at: Option<f64>,
}

/// What happened in a cache.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// Blocks were cached.
    Stored(Stored<'a>),
    /// Blocks went.
    Removed(Removed),
    /// All blocks went.
    Cleared,
}

/// Consecutive blocks of a prompt were cached.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored<'a> {
    /// The engine's names of the blocks.
    pub hashes: Vec<u64>,
    /// Its name of the block before them; none at the beginning of a prompt.
    pub parent: Option<u64>,
    /// The ids of all blocks.
    pub ids: Vec<u32>,
    /// Ids of a block.
    pub block_size: u64,
    /// Where they are.
    pub tier: Tier,
    /// The LoRA adapter.
    pub lora_name: Option<&'a str>,
    /// What beside ids and adapter makes blocks different.
    pub extra_keys: ExtraKeys<'a>,
    /// The cache group, in engines with several.
    pub group: Option<u64>,
    /// Attention reaches back to the beginning: else the blocks behind a window are of no use.
    pub is_full_attention: bool,
}

/// Blocks went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The engine's names of the blocks.
    pub hashes: Vec<u64>,
    /// Where they were.
    pub tier: Tier,
    /// The cache group, in engines with several.
    pub group: Option<u64>,
}

/// Extra keys of consecutive blocks, read one block at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraKeys<'a> {
    left: usize,
    rest: Reader<'a>,
}

/// The extra keys of one block, its LoRA adapter left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKeys<'a> {
    /// None.
    None,
    /// One string: a cache salt, if the block is the first of a prompt.
    Salt(&'a str),
    /// Something else, such as an image: the ids do not say what the block is.
    Other,
}

/// Fields of events of all kinds.
#[derive(Debug, Default)]
struct Fields<'a> {
    stored: Stored<'a>,
    kind: Option<&'a str>,
    has_window: bool,
}

/// Fields in the order of arrays, behind the tag.
const STORED: [&str; 11] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
];
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];
const BATCH: [&str; 3] = ["ts", "events", "data_parallel_rank"];
/// Events of a batch: far more than an engine has in one step, and 9 MiB here, where the smallest have 14 bytes there.
const MAX_EVENTS: usize = 1 << 16;

// === impl Tier ===

impl Tier {
    /// All of them, the fastest first.
    pub const ALL: [Self; 3] = [Self::Gpu, Self::Host, Self::Disk];

    /// Its place in [`ALL`](Self::ALL).
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Gpu => 0,
            Self::Host => 1,
            Self::Disk => 2,
        }
    }

    fn of_medium(medium: Option<&str>) -> Self {
        match medium {
            None => Self::Gpu,
            Some(name) if name.eq_ignore_ascii_case("gpu") => Self::Gpu,
            Some(name) if name.eq_ignore_ascii_case("cpu") => Self::Host,
            Some(_) => Self::Disk,
        }
    }
}

// === impl Batch ===

impl<'a> Batch<'a> {
    /// Reads a message.
    /// # Errors
    /// When it is no `MessagePack`, ends early, claims more than it has, has a value of another type than its field, or more
    /// than 65,536 events.
    pub fn read(message: &'a [u8]) -> Result<Self, MalformedEvents> {
        let mut batch = Self {
            events: Vec::new(),
            rank: None,
            at: None,
        };
        let mut reader = Reader::new(message);
        reader.each_field(&BATCH, |reader, name| {
            match name {
                "events" => {
                    let events = reader.array()?;
                    // maps may name them again
                    if events > MAX_EVENTS.saturating_sub(batch.events.len()) {
                        return Err(MalformedEvents::Events(MAX_EVENTS));
                    }
                    for _ in 0..events {
                        batch.events.extend(Event::read(reader)?);
                    }
                }
                "ts" => batch.at = reader.number_or_skip()?,
                "data_parallel_rank" => batch.rank = reader.optional(Reader::int)?,
                _ => reader.skip()?,
            }
            Ok(())
        })?;
        Ok(batch)
    }
}

// === impl Event ===

impl<'a> Event<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Option<Self>, MalformedEvents> {
        let mut ahead = *reader;
        let (tag, names): (_, &[&str]) = if reader.is_array()? {
            ahead.array()?;
            let tag = ahead.text()?;
            (Some(tag), fields_of(tag))
        } else {
            let mut tag = None;
            ahead.each_field(&[], |reader, name| {
                match name {
                    "type" => tag = Some(reader.text()?),
                    _ => reader.skip()?,
                }
                Ok(())
            })?;
            (tag, &[])
        };
        let Some(tag @ ("BlockStored" | "BlockRemoved" | "AllBlocksCleared")) = tag else {
            reader.skip()?;
            return Ok(None);
        };
        let mut fields = Fields::default();
        let with_tag: Vec<&str> = std::iter::once("type")
            .chain(names.iter().copied())
            .collect();
        reader.each_field(&with_tag, |reader, name| fields.read(name, reader))?;
        Ok(match tag {
            "BlockStored" => Some(Self::Stored(fields.stored())),
            "BlockRemoved" => Some(Self::Removed(fields.removed())),
            _ => Some(Self::Cleared),
        })
    }
}

fn fields_of(tag: &str) -> &'static [&'static str] {
    match tag {
        "BlockStored" => &STORED,
        "BlockRemoved" => &REMOVED,
        _ => &[],
    }
}

// === impl Fields ===

impl<'a> Fields<'a> {
    fn read(&mut self, name: &str, reader: &mut Reader<'a>) -> Result<(), MalformedEvents> {
        let it = &mut self.stored;
        match name {
            "block_hashes" => it.hashes = reader.list(Reader::hash)?,
            "parent_block_hash" => it.parent = reader.optional(Reader::hash)?,
            "token_ids" => it.ids = reader.list(Reader::id)?,
            "block_size" => it.block_size = reader.int()?,
            "medium" => it.tier = Tier::of_medium(reader.optional(Reader::text)?),
            "lora_name" => it.lora_name = reader.optional(Reader::text)?,
            "extra_keys" => it.extra_keys = ExtraKeys::read(reader)?,
            "group_idx" => it.group = reader.optional(Reader::int)?,
            "kv_cache_spec_kind" => self.kind = reader.optional(Reader::text)?,
            "kv_cache_spec_sliding_window" => {
                self.has_window = reader.optional(Reader::int)?.is_some();
            }
            _ => reader.skip()?,
        }
        Ok(())
    }

    fn stored(mut self) -> Stored<'a> {
        self.stored.is_full_attention = match self.kind {
            Some(kind) => kind.ends_with("full_attention") || kind == "mla_attention",
            None => !self.has_window,
        };
        self.stored
    }

    fn removed(self) -> Removed {
        let Stored {
            hashes,
            tier,
            group,
            ..
        } = self.stored;
        Removed {
            hashes,
            tier,
            group,
        }
    }
}

// === impl ExtraKeys ===

impl<'a> ExtraKeys<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, MalformedEvents> {
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
        // it was skipped over before, so it is well formed
        Self::keys(&mut self.rest, lora_name).unwrap_or(BlockKeys::Other)
    }

    fn keys(
        reader: &mut Reader<'a>,
        lora_name: Option<&str>,
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
            let key = reader.text_or_skip()?;
            if key.is_some() && key == lora_name {
                continue;
            }
            found = match (found, key) {
                (BlockKeys::None, Some(salt)) => BlockKeys::Salt(salt),
                _ => BlockKeys::Other,
            };
        }
        Ok(found)
    }
}
