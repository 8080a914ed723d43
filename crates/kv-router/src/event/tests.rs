use proptest::prelude::*;
use rmp::encode;
use rstest::rstest;

use super::*;

/// A value of a message.
#[derive(Clone, Debug)]
enum Value {
    Nil,
    Int(i64),
    Big(u64),
    Float(f64),
    Text(&'static str),
    Bytes(&'static [u8]),
    List(Vec<Value>),
    Map(Vec<(&'static str, Value)>),
}

use Value::{Big, Bytes, Float, Int, List, Map, Nil, Text};

// === impl Value ===

impl Value {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Nil => encode::write_nil(out).unwrap(),
            Int(value) => {
                encode::write_sint(out, *value).unwrap();
            }
            Big(value) => {
                encode::write_uint(out, *value).unwrap();
            }
            Float(value) => encode::write_f64(out, *value).unwrap(),
            Text(text) => encode::write_str(out, text).unwrap(),
            Bytes(bytes) => encode::write_bin(out, bytes).unwrap(),
            List(values) => {
                encode::write_array_len(out, u32::try_from(values.len()).unwrap()).unwrap();
                for value in values {
                    value.write(out);
                }
            }
            Map(fields) => {
                encode::write_map_len(out, u32::try_from(fields.len()).unwrap()).unwrap();
                for (name, value) in fields {
                    encode::write_str(out, name).unwrap();
                    value.write(out);
                }
            }
        }
    }

    fn message(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }
}

fn ints(values: &[i64]) -> Value {
    List(values.iter().copied().map(Int).collect())
}

fn mk_batch(events: Vec<Value>) -> Value {
    List(vec![Float(1.5), List(events), Int(3)])
}

/// Two blocks of two ids with everything that an engine says of them.
fn fields() -> Vec<(&'static str, Value)> {
    vec![
        ("block_hashes", List(vec![Int(-2), Big(u64::MAX - 7)])),
        ("parent_block_hash", Bytes(&[9, 9, 0, 0, 0, 0, 0, 0, 1, 2])),
        ("token_ids", ints(&[1, 200, 70_000, 5])),
        ("block_size", Int(2)),
        ("lora_id", Int(7)),
        ("medium", Text("CPU")),
        ("lora_name", Text("sql")),
        (
            "extra_keys",
            List(vec![List(vec![Text("sql"), Text("tenant")]), Nil]),
        ),
        ("group_idx", Int(1)),
        ("kv_cache_spec_kind", Text("full_attention")),
        ("kv_cache_spec_sliding_window", Nil),
    ]
}

fn as_array(tag: &'static str, fields: Vec<(&'static str, Value)>) -> Value {
    let values = fields.into_iter().map(|(_, value)| value);
    List(std::iter::once(Text(tag)).chain(values).collect())
}

/// The tag at the end: a map has no order.
fn as_map(tag: &'static str, mut fields: Vec<(&'static str, Value)>) -> Value {
    fields.push(("type", Text(tag)));
    Map(fields)
}

#[test]
fn arrays_and_maps_of_events_are_the_same_in_any_mix() {
    let events = |as_event: fn(&'static str, Vec<(&'static str, Value)>) -> Value| {
        vec![
            as_event("BlockStored", fields()),
            as_event(
                "BlockRemoved",
                vec![
                    ("block_hashes", ints(&[5])),
                    ("medium", Text("disk")),
                    ("group_idx", Int(1)),
                ],
            ),
            as_event("AllBlocksCleared", vec![]),
        ]
    };
    let mut removed = Removed::default();
    (removed.hashes, removed.tier, removed.group) = (vec![5], Tier::Disk, Some(1));
    for events in [events(as_array), events(as_map)] {
        let in_map = Map(vec![
            ("data_parallel_rank", Int(3)),
            ("events", List(events.clone())),
            ("ts", Float(1.5)),
        ]);
        for batch in [mk_batch(events.clone()), in_map] {
            let message = batch.message();
            let read = Batch::read(&message).unwrap();
            assert_eq!(read.rank, Some(3));
            let [Event::Stored(stored), gone, Event::Cleared] = &read.events[..] else {
                panic!("{read:?}");
            };
            assert_eq!(*gone, Event::Removed(removed.clone()));
            assert_eq!(stored.hashes, [u64::MAX - 1, u64::MAX - 7]);
            assert_eq!(stored.parent, Some(0x0102));
            assert_eq!(stored.ids, [1, 200, 70_000, 5]);
            assert_eq!((stored.block_size, stored.tier), (2, Tier::Host));
            assert_eq!((stored.lora_name, stored.group), (Some("sql"), Some(1)));
            assert!(stored.is_full_attention);
            let mut keys = stored.extra_keys.clone();
            assert_eq!(keys.next_block(Some("sql")), BlockKeys::Salt("tenant"));
            assert_eq!(keys.next_block(Some("sql")), BlockKeys::None);
            assert_eq!(keys.next_block(Some("sql")), BlockKeys::None);
        }
    }
}

#[test]
fn old_and_new_engines_are_read() {
    // where SGLang ended once
    let old = as_array("BlockStored", fields()[..5].to_vec());
    // and fields that are not known here
    let mut new = fields();
    new.push(("later", Map(vec![("deep", List(vec![Nil, Float(1.0)]))])));
    let unknown = List(vec![Text("BlockMoved"), Map(vec![])]);
    let message = List(vec![
        Float(1.5),
        List(vec![
            old,
            as_array("BlockStored", new.clone()),
            unknown,
            as_map("BlockStored", new),
        ]),
    ])
    .message();
    let batch = Batch::read(&message).unwrap();
    let [Event::Stored(old), Event::Stored(new), Event::Stored(other)] = &batch.events[..] else {
        panic!("{batch:?}");
    };
    assert_eq!(
        (old.tier, old.lora_name, old.is_full_attention),
        (Tier::Gpu, None, true)
    );
    assert_eq!((new, batch.rank, batch.at), (other, None, Some(1.5)));
}

#[test]
fn the_time_of_a_batch_may_be_any_number_or_none() {
    for (time, at) in [
        (Float(2.5), Some(2.5)),
        (Int(7), Some(7.0)),
        (Nil, None),
        (Text("now"), None),
    ] {
        let message = List(vec![time, List(vec![as_array("AllBlocksCleared", vec![])])]).message();
        let batch = Batch::read(&message).unwrap();
        assert_eq!((batch.at, &batch.events[..]), (at, &[Event::Cleared][..]));
    }
}

#[rstest]
#[case::no_kind(Nil, Nil, true)]
#[case::sink(Text("sink_full_attention"), Nil, true)]
#[case::mla(Text("mla_attention"), Nil, true)]
#[case::unknown(Text("unknown"), Nil, true)]
#[case::window_without_kind(Nil, Int(128), false)]
#[case::window(Text("sliding_window"), Int(128), false)]
#[case::state(Text("mamba"), Nil, false)]
fn only_full_attention_is_full_attention(
    #[case] kind: Value,
    #[case] window: Value,
    #[case] full: bool,
) {
    let mut fields = fields();
    (fields[9].1, fields[10].1) = (kind, window);
    let message = mk_batch(vec![as_array("BlockStored", fields)]).message();
    let batch = Batch::read(&message).unwrap();
    let Event::Stored(stored) = &batch.events[0] else {
        panic!("{batch:?}");
    };
    assert_eq!(stored.is_full_attention, full);
}

#[rstest]
#[case::number(List(vec![Int(1)]), BlockKeys::Other)]
#[case::position(List(vec![List(vec![Text("image"), Int(0)])]), BlockKeys::Other)]
#[case::two(List(vec![Text("a"), Text("b")]), BlockKeys::Other)]
#[case::bare(Text("a"), BlockKeys::Salt("a"))]
#[case::adapter(List(vec![Text("sql")]), BlockKeys::None)]
#[case::nothing(List(vec![]), BlockKeys::None)]
fn keys_of_blocks_are_adapter_salt_or_other(#[case] key: Value, #[case] expected: BlockKeys<'_>) {
    let mut fields = fields();
    fields[7].1 = List(vec![key, Nil]);
    let message = mk_batch(vec![as_array("BlockStored", fields)]).message();
    let batch = Batch::read(&message).unwrap();
    let Event::Stored(stored) = &batch.events[0] else {
        panic!("{batch:?}");
    };
    let mut keys = stored.extra_keys.clone();
    assert_eq!(keys.next_block(Some("sql")), expected);
    assert_eq!(keys.next_block(Some("sql")), BlockKeys::None);
}

/// How the only stored event of a batch is read.
fn with_stored(event: Value, look: impl FnOnce(&Stored<'_>)) {
    let message = mk_batch(vec![event]).message();
    let batch = Batch::read(&message).unwrap();
    let [Event::Stored(stored)] = &batch.events[..] else {
        panic!("{batch:?}");
    };
    look(stored);
}

fn mk_fields(name: &'static str, value: Value) -> Vec<(&'static str, Value)> {
    let mut fields = fields();
    fields.retain(|(known, _)| *known != name);
    fields.push((name, value));
    fields
}

#[rstest]
#[case::none(Nil, Tier::Gpu)]
#[case::device(Text("DEVICE"), Tier::Gpu)]
#[case::cpu(Text("cpu"), Tier::Host)]
#[case::pinned(Text("CPU_PINNED"), Tier::Host)]
#[case::tier(Text("CPU_TIER1"), Tier::Host)]
#[case::storage(Text("STORAGE"), Tier::Disk)]
#[case::file_system(Text("FS"), Tier::Disk)]
fn memory_of_the_host_and_of_devices_has_several_names(#[case] medium: Value, #[case] tier: Tier) {
    let event = as_map("BlockStored", mk_fields("medium", medium));
    with_stored(event, |stored| assert_eq!(stored.tier, tier));
}

#[rstest]
#[case::locality("locality", "REMOTE")]
#[case::remote("medium", "REMOTE")]
#[case::external("medium", "EXTERNAL")]
fn what_all_workers_share_is_of_none(#[case] name: &'static str, #[case] value: &'static str) {
    let fields = mk_fields(name, Text(value));
    let gone = vec![("block_hashes", ints(&[5])), (name, Text(value))];
    let events = vec![as_map("BlockStored", fields), as_map("BlockRemoved", gone)];
    let message = mk_batch(events).message();
    let is = [true, false].map(|is_stored| Event::Shared { is_stored });
    assert_eq!(Batch::read(&message).unwrap().events, is);
    let local = as_map("BlockStored", mk_fields("locality", Text("LOCAL")));
    with_stored(local, |stored| assert_eq!(stored.tier, Tier::Host));
}

#[rstest]
#[case::pairs(List(vec![ints(&[1, 200]), ints(&[200, 70_000])]), &[1, 200], None)]
#[case::nil(Nil, &[], None)]
#[case::text(List(vec![Int(1), Text("mm:ab")]), &[1, 0], Some(1))]
#[case::negative(ints(&[-1, 1]), &[0, 1], Some(0))]
#[case::above_32_bits(List(vec![Int(4), Big(1 << 33), Int(-1)]), &[4, 0, 0], Some(1))]
#[case::triple(List(vec![ints(&[1, 2, 3])]), &[0], Some(0))]
#[case::float(List(vec![Float(1.0)]), &[0], Some(0))]
fn ids_may_be_pairs_and_what_is_no_id_is_marked(
    #[case] ids: Value,
    #[case] expected: &[u32],
    #[case] opaque_from: Option<usize>,
) {
    let event = as_map("BlockStored", mk_fields("token_ids", ids));
    with_stored(event, |stored| {
        assert_eq!(
            (&stored.ids[..], stored.opaque_from),
            (expected, opaque_from)
        );
    });
}

#[rstest]
#[case::number(Int(3), Nil, true)]
#[case::text(Text("abc"), Nil, true)]
#[case::empty_name(Int(3), Text(""), true)]
#[case::odd_name(Nil, Int(7), true)]
#[case::named(Int(3), Text("sql"), false)]
#[case::base(Nil, Nil, false)]
fn an_adapter_without_a_name_is_not_the_base_model(
    #[case] id: Value,
    #[case] name: Value,
    #[case] is_unnamed: bool,
) {
    let mut fields = mk_fields("lora_id", id);
    fields.retain(|(known, _)| *known != "lora_name");
    fields.push(("lora_name", name));
    with_stored(as_map("BlockStored", fields), |stored| {
        assert_eq!(stored.is_unnamed_adapter, is_unnamed);
    });
}

#[rstest]
#[case::salt(Map(vec![("type", Text("cache_salt")), ("salt", Text("T"))]), BlockKeys::Salt("T"))]
#[case::tagged_salt(List(vec![Text("cache_salt"), Text("T")]), BlockKeys::Salt("T"))]
#[case::adapter(Map(vec![("type", Text("lora")), ("name", Text("sql"))]), BlockKeys::None)]
#[case::tagged_adapter(List(vec![Text("lora"), Text("sql"), Text("/path")]), BlockKeys::None)]
#[case::another_adapter(List(vec![Text("lora"), Text("other")]), BlockKeys::Other)]
#[case::dynamo(Text("dynamo-cache-salt:T"), BlockKeys::Salt("T"))]
#[case::image(List(vec![Text("mm"), Text("ab"), Int(0)]), BlockKeys::Other)]
fn keys_may_name_their_source(#[case] key: Value, #[case] expected: BlockKeys<'_>) {
    let keys = List(vec![List(vec![key]), List(vec![Text("sql"), Text("sql")])]);
    let event = as_map("BlockStored", mk_fields("extra_keys", keys));
    with_stored(event, |stored| {
        let mut keys = stored.extra_keys.clone();
        assert_eq!(keys.next_block(Some("sql")), expected);
        // a salt may have the name of the adapter
        assert_eq!(keys.next_block(Some("sql")), BlockKeys::Salt("sql"));
    });
}

#[test]
fn a_batch_has_65536_events_at_most_in_however_many_lists() {
    let events = |count| List(vec![as_array("AllBlocksCleared", vec![]); count]);
    let batch = |counts: &[usize]| {
        let lists = counts.iter().map(|count| ("events", events(*count)));
        Map(lists.collect()).message()
    };
    for counts in [&[65_536][..], &[65_535, 1]] {
        let message = batch(counts);
        let read = Batch::read(&message).unwrap().events;
        assert_eq!((read.len(), read.last()), (65_536, Some(&Event::Cleared)));
    }
    for counts in [&[65_537][..], &[65_536, 1]] {
        let message = batch(counts);
        let read = Batch::read(&message).unwrap().events;
        let error = MalformedEvents::Events(65_536);
        let is_stored = false;
        assert_eq!(read.len(), 65_537);
        assert_eq!(read.last(), Some(&Event::Unreadable { error, is_stored }));
    }
}

/// Each such event is left out alone: the events beside it are read.
#[rstest]
#[case::text_hash(as_array("BlockRemoved", vec![("", List(vec![Text("a")]))]), false)]
#[case::hashes_of_stored(as_map("BlockStored", vec![("block_hashes", Int(1))]), true)]
#[case::medium(as_map("BlockStored", vec![("medium", Int(1))]), true)]
#[case::size(as_map("BlockStored", vec![("block_size", Text("16"))]), true)]
#[case::nil(Nil, false)]
#[case::text(Text("BlockStored"), false)]
#[case::no_tag(List(vec![]), false)]
#[case::no_type(Map(vec![("block_hashes", ints(&[5]))]), false)]
#[case::odd_type(Map(vec![("type", Int(1))]), false)]
fn an_event_that_cannot_be_read_costs_itself_alone(#[case] odd: Value, #[case] stored: bool) {
    let gone = as_array("BlockRemoved", vec![("block_hashes", ints(&[5]))]);
    let message = mk_batch(vec![gone.clone(), odd, gone]).message();
    let batch = Batch::read(&message).unwrap();
    let [
        Event::Removed(one),
        Event::Unreadable { is_stored, .. },
        Event::Removed(other),
    ] = &batch.events[..]
    else {
        panic!("{batch:?}");
    };
    assert_eq!((one, *is_stored, batch.rank), (other, stored, Some(3)));
}

/// Deep, long and wrong: each is refused for what it is.
#[rstest]
#[case::empty(vec![], "truncated")]
#[case::no_list(vec![0x05], "wrong-type")]
#[case::no_events(mk_batch(vec![]).message()[..10].to_vec(), "truncated")]
#[case::a_billion_events([&[0x92, 0x00, 0xdd][..], &1_000_000_000_u32.to_be_bytes()].concat(), "oversized")]
#[case::a_billion_skipped([&[0x91, 0xdf][..], &1_000_000_000_u32.to_be_bytes()].concat(), "oversized")]
#[case::deep(vec![0x91; 1_000_000], "oversized")]
fn what_lies_is_refused(#[case] message: Vec<u8>, #[case] reason: &str) {
    let error = Batch::read(&message).unwrap_err();
    assert_eq!(error.reason(), reason, "{error}");
}

#[test]
fn where_the_end_of_an_event_is_not_known_all_behind_it_is_unreadable() {
    let long_text = [&[0x92, 0x00, 0x92, 0x91][..], &[0xb0], b"AllBlocksCleared"].concat();
    let message = [&long_text[..], &[0x91, 0xdb, 0xff, 0xff, 0xff, 0xff]].concat();
    let batch = Batch::read(&message).unwrap();
    let [Event::Cleared, Event::Unreadable { error, .. }] = &batch.events[..] else {
        panic!("{batch:?}");
    };
    assert_eq!(error.reason(), "oversized");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Batch::read(&bytes);
    }

    /// A good message with a few bytes changed or cut off.
    #[test]
    fn damaged_messages_are_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let events = vec![as_array("BlockStored", fields()), as_map("BlockStored", fields())];
        let mut message = mk_batch(events).message();
        for (at, byte) in changes {
            let at = at.index(message.len());
            message[at] = byte;
        }
        message.truncate(cut.index(message.len()) + 1);
        if let Ok(batch) = Batch::read(&message) {
            for event in batch.events {
                if let Event::Stored(mut stored) = event {
                    for _ in 0..stored.hashes.len() {
                        stored.extra_keys.next_block(None);
                    }
                }
            }
        }
    }
}
