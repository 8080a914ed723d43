use kv_router::{Batch, BlockKeys, Event, ExtraKeys, Tier};

use super::*;
use crate::engine::{PrefixSeed, prefix_blocks};

fn mk_stored(adapter: Option<&str>, salt: &str) -> (Vec<BlockHash>, CacheEvent) {
    let hashes = prefix_blocks(PrefixSeed::default(), b"aaaabbbbccccdddd", 2);
    let stored = StoredBlocks {
        hashes: hashes.clone(),
        parent: None,
        ids: vec![1, 70_000, 3, 4],
        adapter: adapter.map(Into::into),
        salt: salt.to_owned(),
    };
    (hashes, CacheEvent::Stored(stored))
}

#[test]
fn both_forms_say_the_same() {
    let (hashes, stored) = mk_stored(Some("sql"), "tenant");
    let events = [
        stored,
        CacheEvent::Removed(hashes.clone()),
        CacheEvent::Cleared,
    ];
    for form in [EventForm::Array, EventForm::Map] {
        let message = encode(form, 1.5, &events, 2, 3);
        let batch = Batch::read(&message).unwrap();
        assert_eq!((batch.at, batch.rank), (Some(1.5), Some(3)));
        let [
            Event::Stored(stored),
            Event::Removed(removed),
            Event::Cleared,
        ] = &batch.events[..]
        else {
            panic!("{batch:?}");
        };
        let names: Vec<u64> = hashes.iter().map(|hash| hash.get()).collect();
        assert_eq!((&stored.hashes, stored.parent), (&names, None));
        assert_eq!(
            (&stored.ids[..], stored.block_size),
            (&[1, 70_000, 3, 4][..], 2)
        );
        assert_eq!((stored.tier, stored.lora_name), (Tier::Gpu, Some("sql")));
        let mut keys = stored.extra_keys.clone();
        assert_eq!(keys.next_block(Some("sql")), BlockKeys::Salt("tenant"));
        assert_eq!(keys.next_block(Some("sql")), BlockKeys::None);
        assert_eq!((&removed.hashes, removed.tier), (&names, Tier::Gpu));
    }
}

/// As vLLM writes it: `msgspec`, the name of the class as tag, with `array_like` before 0.26.
#[test]
fn a_batch_is_byte_for_byte_that_of_vllm() {
    for (form, event) in [
        (EventForm::Array, &[0x91][..]),
        (EventForm::Map, &[0x81, 0xa4, b't', b'y', b'p', b'e']),
    ] {
        let mut golden = vec![0x93, 0xcb];
        golden.extend(1.5_f64.to_be_bytes());
        golden.push(0x91);
        golden.extend(event);
        golden.push(0xb0);
        golden.extend(b"AllBlocksCleared");
        golden.push(0);
        assert_eq!(encode(form, 1.5, &[CacheEvent::Cleared], 16, 0), golden);
    }
}

#[test]
fn without_adapter_and_salt_there_are_no_extra_keys() {
    for form in [EventForm::Array, EventForm::Map] {
        let (_, stored) = mk_stored(None, "");
        let message = encode(form, 0.0, &[stored], 2, 0);
        let batch = Batch::read(&message).unwrap();
        let [Event::Stored(stored)] = &batch.events[..] else {
            panic!("{batch:?}");
        };
        assert_eq!(
            (stored.lora_name, stored.extra_keys.clone()),
            (None, ExtraKeys::default())
        );
    }
}
