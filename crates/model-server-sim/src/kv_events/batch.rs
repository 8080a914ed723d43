//! Batches in `MessagePack`, with the names and the order of vLLM. Pure.

use rmp::encode::{
    ByteBuf, write_array_len, write_f64, write_map_len, write_nil, write_str, write_uint,
};

use crate::{
    args::EventForm,
    engine::{BlockHash, CacheEvent, StoredBlocks},
};

/// What happened in one step.
pub(super) fn encode(
    form: EventForm,
    now: f64,
    events: &[CacheEvent],
    block_tokens: u32,
    rank: u16,
) -> Vec<u8> {
    let mut batch = Fields::begin(EventForm::Array, None, 3);
    batch.name("ts");
    infallible(write_f64(&mut batch.out, now));
    batch.name("events");
    array(&mut batch.out, events.len());
    for event in events {
        let event = match event {
            CacheEvent::Stored(stored) => encode_stored(form, stored, block_tokens),
            CacheEvent::Removed(hashes) => {
                let mut event = Fields::begin(form, Some("BlockRemoved"), 2);
                event.hashes(hashes);
                event.text("medium", "GPU");
                event.end()
            }
            CacheEvent::Cleared => Fields::begin(form, Some("AllBlocksCleared"), 0).end(),
        };
        batch.out.as_mut_vec().extend(event);
    }
    batch.number("data_parallel_rank", rank.into());
    batch.end()
}

fn encode_stored(form: EventForm, stored: &StoredBlocks, block_tokens: u32) -> Vec<u8> {
    let StoredBlocks {
        hashes,
        parent,
        ids,
        adapter,
        salt,
    } = stored;
    // a salt makes the first block of a prompt another one, an adapter all of them
    let salt = Some(salt.as_str()).filter(|salt| parent.is_none() && !salt.is_empty());
    let has_keys = salt.is_some() || adapter.is_some();
    // maps are without what is nothing by default
    let fields = match form {
        EventForm::Map if !has_keys => 7,
        EventForm::Array | EventForm::Map => 8,
    };
    let mut event = Fields::begin(form, Some("BlockStored"), fields);
    event.hashes(hashes);
    match parent {
        Some(parent) => event.number("parent_block_hash", parent.get()),
        None => event.nil("parent_block_hash"),
    }
    event.name("token_ids");
    array(&mut event.out, ids.len());
    for id in ids {
        infallible(write_uint(&mut event.out, u64::from(*id)));
    }
    event.number("block_size", block_tokens.into());
    event.nil("lora_id");
    event.text("medium", "GPU");
    match adapter {
        Some(adapter) => event.text("lora_name", adapter),
        None => event.nil("lora_name"),
    }
    if !has_keys {
        if form == EventForm::Array {
            event.nil("extra_keys");
        }
        return event.end();
    }
    event.name("extra_keys");
    array(&mut event.out, hashes.len());
    for block in 0..hashes.len() {
        let salt = salt.filter(|_| block == 0);
        let keys: Vec<&str> = adapter.as_deref().into_iter().chain(salt).collect();
        if keys.is_empty() {
            infallible(write_nil(&mut event.out));
            continue;
        }
        array(&mut event.out, keys.len());
        for key in keys {
            infallible(write_str(&mut event.out, key));
        }
    }
    event.end()
}

/// Fields, with their names where the form has them.
struct Fields {
    form: EventForm,
    out: ByteBuf,
}

// === impl Fields ===

impl Fields {
    /// As many fields behind the tag, if there is one.
    fn begin(form: EventForm, tag: Option<&str>, fields: u32) -> Self {
        let mut out = ByteBuf::new();
        let fields = fields + u32::from(tag.is_some());
        match form {
            EventForm::Array => infallible(write_array_len(&mut out, fields)),
            EventForm::Map => infallible(write_map_len(&mut out, fields)),
        }
        let mut fields = Self { form, out };
        if let Some(tag) = tag {
            fields.text("type", tag);
        }
        fields
    }

    fn name(&mut self, name: &str) {
        if self.form == EventForm::Map {
            infallible(write_str(&mut self.out, name));
        }
    }

    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        infallible(write_str(&mut self.out, text));
    }

    fn number(&mut self, name: &str, number: u64) {
        self.name(name);
        infallible(write_uint(&mut self.out, number));
    }

    fn nil(&mut self, name: &str) {
        self.name(name);
        infallible(write_nil(&mut self.out));
    }

    fn hashes(&mut self, hashes: &[BlockHash]) {
        self.name("block_hashes");
        array(&mut self.out, hashes.len());
        for hash in hashes {
            infallible(write_uint(&mut self.out, hash.get()));
        }
    }

    fn end(self) -> Vec<u8> {
        self.out.into_vec()
    }
}

fn array(out: &mut ByteBuf, len: usize) {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    infallible(write_array_len(out, len));
}

fn infallible<T, E: std::fmt::Debug>(written: Result<T, E>) {
    written.expect("a buffer in memory takes all that there is memory for");
}

#[cfg(test)]
mod tests;
