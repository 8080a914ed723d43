//! What engines publish of their KV caches: batches of events in `MessagePack`.
//!
//! Batches and events come as arrays or as maps, in any mix; tails may be missing and what is unknown is ignored. An event
//! that cannot be read costs itself alone. Nothing is allocated for what the bytes cannot hold.

use self::read::Reader;

mod keys;
mod read;

#[cfg(test)]
mod tests;

pub use keys::{BlockKeys, ExtraKeys};
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
    /// What happened, in order; events of unknown kinds are left out. Where the rest of the message cannot be read, the
    /// last one is [`Event::Unreadable`].
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
    /// Blocks were added to or removed from a store that all workers share: they are not in this worker's cache.
    Shared {
        /// Whether the blocks were stored; otherwise they were removed.
        is_stored: bool,
    },
    /// The event could not be read.
    Unreadable {
        /// Why it could not be read.
        error: MalformedEvents,
        /// Whether its tag is that of stored blocks. Any other event may have removed some.
        is_stored: bool,
    },
}

/// Consecutive blocks of a prompt were cached.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored<'a> {
    /// The engine's names of the blocks.
    pub hashes: Vec<u64>,
    /// Its name of the block before them; none at the beginning of a prompt.
    pub parent: Option<u64>,
    /// The ids of all blocks; none where the event only names blocks, as vLLM's offloading does.
    pub ids: Vec<u32>,
    /// The place of the first id that is not an id of a vocabulary, such as the digest of an image. Only the ids before
    /// it identify their block.
    pub opaque_from: Option<usize>,
    /// Number of ids in a block; 0 where the event does not state it.
    pub block_size: u64,
    /// Where they are.
    pub tier: Tier,
    /// The LoRA adapter.
    pub lora_name: Option<&'a str>,
    /// Whether the event names the adapter by a number instead of a name: it is not known which adapter it is.
    pub is_unnamed_adapter: bool,
    /// The cache salt, where it is a field of its own.
    pub cache_salt: Option<&'a str>,
    /// What beside ids and adapter makes blocks different.
    pub extra_keys: ExtraKeys<'a>,
    /// The keys of images and other media in each block.
    pub media_keys: ExtraKeys<'a>,
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

/// Fields of events of all kinds.
#[derive(Debug, Default)]
struct Fields<'a> {
    stored: Stored<'a>,
    kind: Option<&'a str>,
    has_window: bool,
    has_lora_id: bool,
    is_shared: bool,
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
/// Stores that all workers share: a block there is as near to any other worker.
const SHARED: [&str; 2] = ["REMOTE", "EXTERNAL"];
const BATCH: [&str; 3] = ["ts", "events", "data_parallel_rank"];
/// Events of a batch: far more than an engine has in one step, and some 12 MiB here, where the smallest have one byte there.
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
        let Some(medium) = medium else {
            return Self::Gpu;
        };
        let is = |names: &[&str]| names.iter().any(|it| medium.eq_ignore_ascii_case(it));
        if is(&["GPU", "DEVICE"]) {
            Self::Gpu
        } else if is(&["CPU", "CPU_PINNED", "CPU_TIER1"]) {
            Self::Host
        } else {
            Self::Disk
        }
    }
}

// === impl Batch ===

impl<'a> Batch<'a> {
    /// Reads a message. What cannot be read within it is an [`Event::Unreadable`] at its place, so that the other events
    /// can be applied.
    /// # Errors
    /// When it is not an array or a map, or has a list of events that is none.
    pub fn read(message: &'a [u8]) -> Result<Self, MalformedEvents> {
        let mut batch = Self {
            events: Vec::new(),
            rank: None,
            at: None,
        };
        let mut has_events = false;
        let read = Reader::new(message).each_field(&BATCH, |reader, name| {
            match name {
                "events" => {
                    let events = reader.array()?;
                    has_events = true;
                    for _ in 0..events {
                        // maps may repeat a key
                        if batch.events.len() >= MAX_EVENTS {
                            return Err(MalformedEvents::Events(MAX_EVENTS));
                        }
                        batch.events.extend(Event::read(reader)?);
                    }
                }
                "ts" => batch.at = reader.number_or_skip()?,
                "data_parallel_rank" => batch.rank = reader.int_or_skip()?,
                _ => reader.skip()?,
            }
            Ok(())
        });
        match read {
            Err(error) if !has_events => Err(error),
            Err(error) => {
                let is_stored = false;
                batch.events.push(Event::Unreadable { error, is_stored });
                Ok(batch)
            }
            Ok(()) => Ok(batch),
        }
    }
}

// === impl Event ===

impl<'a> Event<'a> {
    /// Reads the next event; none if its kind is not known.
    /// # Errors
    /// When the end of the event cannot be found.
    fn read(reader: &mut Reader<'a>) -> Result<Option<Self>, MalformedEvents> {
        let start = *reader;
        let (error, is_stored) = match Self::tag(start) {
            Ok(tag) => match Self::tagged(reader, tag) {
                Ok(event) => return Ok(event),
                Err(error) => (error, tag == "BlockStored"),
            },
            Err(error) => (error, false),
        };
        *reader = start;
        reader.skip()?;
        Ok(Some(Self::Unreadable { error, is_stored }))
    }

    fn tag(mut reader: Reader<'a>) -> Result<&'a str, MalformedEvents> {
        if reader.is_array()? {
            reader.array()?;
            return reader.text();
        }
        let mut tag = None;
        reader.each_field(&[], |reader, name| {
            match name {
                "type" => tag = Some(reader.text()?),
                _ => reader.skip()?,
            }
            Ok(())
        })?;
        tag.ok_or(MalformedEvents::Expected("a type"))
    }

    fn tagged(reader: &mut Reader<'a>, tag: &str) -> Result<Option<Self>, MalformedEvents> {
        if !matches!(tag, "BlockStored" | "BlockRemoved" | "AllBlocksCleared") {
            reader.skip()?;
            return Ok(None);
        }
        let mut fields = Fields::default();
        let names: &[&str] = if reader.is_array()? {
            fields_of(tag)
        } else {
            &[]
        };
        let with_tag: Vec<&str> = std::iter::once("type")
            .chain(names.iter().copied())
            .collect();
        reader.each_field(&with_tag, |reader, name| fields.read(name, reader))?;
        Ok(Some(match tag {
            "BlockStored" if fields.is_shared => Self::Shared { is_stored: true },
            "BlockRemoved" if fields.is_shared => Self::Shared { is_stored: false },
            "BlockStored" => Self::Stored(fields.stored()),
            "BlockRemoved" => Self::Removed(fields.removed()),
            _ => Self::Cleared,
        }))
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
            "token_ids" => (it.ids, it.opaque_from) = reader.ids()?,
            "block_size" => it.block_size = reader.optional(Reader::int)?.unwrap_or(0),
            "medium" => {
                let medium = reader.optional(Reader::text)?;
                let is = |name: &&str| medium.is_some_and(|it| it.eq_ignore_ascii_case(name));
                self.is_shared |= SHARED.iter().any(is);
                it.tier = Tier::of_medium(medium);
            }
            "locality" => {
                let locality = reader.text_or_skip()?;
                self.is_shared |= locality.is_some_and(|it| it.eq_ignore_ascii_case("REMOTE"));
            }
            "lora_id" => self.has_lora_id = !reader.nil_or_skip()?,
            "lora_name" => match reader.optional(Reader::text_or_skip)? {
                // the name is not a text, so no request can have it
                Some(None) => self.has_lora_id = true,
                Some(name) => it.lora_name = name.filter(|name| !name.is_empty()),
                None => {}
            },
            "cache_salt" => {
                let salt = reader.optional(Reader::text)?;
                it.cache_salt = salt.filter(|salt| !salt.is_empty());
            }
            "extra_keys" => it.extra_keys = ExtraKeys::read(reader)?,
            "mm_keys" => it.media_keys = ExtraKeys::read(reader)?,
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
            // of groups that merge kinds some versions of vLLM know no kind
            None | Some("unknown") => !self.has_window,
            Some(kind) => kind.ends_with("full_attention") || kind == "mla_attention",
        };
        self.stored.is_unnamed_adapter = self.has_lora_id && self.stored.lora_name.is_none();
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
