use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};

use super::*;

const TTL: Duration = Duration::from_mins(5);

fn keys(count: usize) -> Vec<TokenKey> {
    let mut rng = StdRng::seed_from_u64(1);
    std::iter::repeat_with(|| TokenKey::random(&mut rng))
        .take(count)
        .collect()
}

fn mk_entry(ids: &[u32]) -> Entry {
    Entry {
        model: "m".into(),
        tokenizer: "t".into(),
        ids: ids.into(),
    }
}

fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * 1000)
}

/// Room for `entries` of `ids` ids, in one part.
fn mk_store(entries: usize, ids: usize) -> MemoryStore {
    let entry = mk_entry(&vec![0; ids]);
    MemoryStore::new(entries * (entry.bytes() + OVERHEAD), TTL)
}

#[test]
fn an_entry_is_read_until_its_time_is_over_however_often() {
    let store = MemoryStore::new(1 << 20, TTL);
    let [key, other] = keys(2)[..] else {
        panic!("two keys");
    };
    assert_eq!(store.put(key, mk_entry(&[1, 2]), at(0)), Ok(Put::Stored));
    assert_eq!(store.get(&key, at(200)), Some(mk_entry(&[1, 2])));
    assert_eq!(store.get(&key, at(299)), Some(mk_entry(&[1, 2])));
    assert_eq!(store.get(&key, at(300)), None);
    assert_eq!(store.get(&other, at(0)), None);
    assert_eq!(store.sizes().entries, 1);
    store.sweep(at(300));
    let evictions = Evictions {
        expired: 1,
        full: 0,
    };
    assert_eq!(
        store.sizes(),
        Sizes {
            evictions,
            ..Sizes::default()
        }
    );
}

#[test]
fn the_same_value_is_no_conflict_and_stays_no_longer() {
    let store = MemoryStore::new(1 << 20, TTL);
    let key = keys(1)[0];
    store.put(key, mk_entry(&[1]), at(0)).unwrap();
    assert_eq!(store.put(key, mk_entry(&[1]), at(200)), Ok(Put::Same));
    assert_eq!(
        store.put(key, mk_entry(&[2]), at(200)),
        Err(PutError::Conflict)
    );
    let other_model = Entry {
        model: "n".into(),
        ..mk_entry(&[1])
    };
    assert_eq!(
        store.put(key, other_model, at(200)),
        Err(PutError::Conflict)
    );
    assert_eq!(store.get(&key, at(300)), None);
    assert_eq!(store.put(key, mk_entry(&[2]), at(300)), Ok(Put::Stored));
}

#[test]
fn an_entry_is_deleted_once() {
    let store = MemoryStore::new(1 << 20, TTL);
    let key = keys(1)[0];
    store.put(key, mk_entry(&[1]), at(0)).unwrap();
    assert!(store.delete(&key, at(0)));
    assert!(!store.delete(&key, at(0)));
    assert_eq!(store.sizes(), Sizes::default());
    store.put(key, mk_entry(&[1]), at(0)).unwrap();
    assert!(!store.delete(&key, at(300)));
}

#[test]
fn what_was_not_used_for_longest_makes_room() {
    let store = mk_store(3, 10);
    let keys = keys(4);
    for key in &keys[..3] {
        store.put(*key, mk_entry(&[0; 10]), at(0)).unwrap();
    }
    store.get(&keys[0], at(1));
    store.put(keys[3], mk_entry(&[0; 10]), at(2)).unwrap();
    let kept = keys.iter().map(|key| store.get(key, at(3)).is_some());
    assert_eq!(kept.collect::<Vec<_>>(), [true, false, true, true]);
    assert_eq!(
        store.sizes().evictions,
        Evictions {
            expired: 0,
            full: 1
        }
    );
}

#[test]
fn an_entry_larger_than_its_room_evicts_nothing() {
    let store = mk_store(2, 10);
    let keys = keys(2);
    store.put(keys[0], mk_entry(&[0; 10]), at(0)).unwrap();
    let large = store.put(keys[1], mk_entry(&[0; 1000]), at(0));
    assert_eq!(large, Err(PutError::TooLarge));
    assert!(store.get(&keys[0], at(0)).is_some());
    let store = MemoryStore::new(1 << 30, TTL);
    assert_eq!(
        store.put(keys[0], mk_entry(&vec![0; MAX_IDS]), at(0)),
        Ok(Put::Stored)
    );
    let large = store.put(keys[1], mk_entry(&vec![0; MAX_IDS + 1]), at(0));
    assert_eq!(large, Err(PutError::TooLarge));
}

#[derive(Clone, Debug)]
enum Step {
    Put(usize, usize),
    Get(usize),
    Delete(usize),
    Wait(u64),
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_usize..8, 0_usize..30).prop_map(|(key, ids)| Step::Put(key, ids)),
        3 => (0_usize..8).prop_map(Step::Get),
        1 => (0_usize..8).prop_map(Step::Delete),
        1 => (0_u64..200).prop_map(Step::Wait),
        1 => Just(Step::Sweep),
    ]
}

proptest! {
    /// Against a list in order of use.
    #[test]
    fn any_steps_leave_what_a_plain_list_has(steps in prop::collection::vec(step(), 0..200)) {
        let store = mk_store(4, 20);
        let room = store.shard_bytes;
        let keys = keys(8);
        let size = |ids: usize| mk_entry(&vec![0; ids]).bytes() + OVERHEAD;
        // key, ids, when it expires; the least recently used first
        let mut list: Vec<(usize, usize, u64)> = Vec::new();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Put(key, ids) => {
                    list.retain(|(_, _, expires)| *expires > now);
                    let result = store.put(keys[key], mk_entry(&vec![0; ids]), at(now));
                    match list.iter().find(|(other, ..)| *other == key) {
                        Some((_, same, _)) if *same == ids => prop_assert_eq!(result, Ok(Put::Same)),
                        Some(_) => prop_assert_eq!(result, Err(PutError::Conflict)),
                        None => {
                            prop_assert_eq!(result, Ok(Put::Stored));
                            list.push((key, ids, now + 300));
                            while list.iter().map(|(_, ids, _)| size(*ids)).sum::<usize>() > room {
                                list.remove(0);
                            }
                        }
                    }
                }
                Step::Get(key) => {
                    let place = list.iter().position(|(other, _, expires)| *other == key && *expires > now);
                    let expected = place.map(|place| {
                        let found = list.remove(place);
                        list.push(found);
                        mk_entry(&vec![0; found.1])
                    });
                    prop_assert_eq!(store.get(&keys[key], at(now)), expected);
                }
                Step::Delete(key) => {
                    list.retain(|(_, _, expires)| *expires > now);
                    let before = list.len();
                    list.retain(|(other, ..)| *other != key);
                    prop_assert_eq!(store.delete(&keys[key], at(now)), list.len() < before);
                }
                Step::Wait(seconds) => now += seconds,
                Step::Sweep => {
                    list.retain(|(_, _, expires)| *expires > now);
                    store.sweep(at(now));
                }
            }
            let sizes = store.sizes();
            let bytes: usize = list.iter().map(|(_, ids, _)| size(*ids)).sum();
            prop_assert_eq!((sizes.entries, sizes.bytes), (list.len(), bytes));
        }
    }
}
