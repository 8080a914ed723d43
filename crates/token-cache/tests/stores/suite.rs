use std::fs;

use prometheus_client::{encoding::text::encode, registry::Registry};
use rstest::rstest;
use token_cache::{MAX_IDS, Put, Settings, Store, StoreError, TokenService, redis_key};
use tokio::task::JoinSet;

use crate::setup::{Kind, LONG, Setup, mk_entry, mk_key, parse, serve};

#[rstest]
#[case::memory(Kind::Memory)]
#[case::http(Kind::Http)]
#[case::redis(Kind::Redis)]
#[tokio::test]
async fn what_is_put_is_read_until_it_is_deleted(#[case] kind: Kind) {
    let setup = Setup::new(kind).await;
    let store = &setup.store;
    for count in [0, 3, 300_000] {
        let (key, entry) = (mk_key(), mk_entry((0..count).collect::<Vec<_>>()));
        assert_eq!(store.get(key, LONG).await, Ok(None));
        assert_eq!(store.put(key, entry.clone(), LONG).await, Ok(Put::Stored));
        for _ in 0..2 {
            assert_eq!(store.fetch(key, LONG).await, Ok(Some(entry.clone())));
        }
        for _ in 0..2 {
            assert_eq!(store.delete(key, LONG).await, Ok(()));
            assert_eq!(store.get(key, LONG).await, Ok(None));
        }
    }
}

#[rstest]
#[case::memory(Kind::Memory)]
#[case::http(Kind::Http)]
#[case::redis(Kind::Redis)]
#[tokio::test]
async fn a_key_keeps_its_value(#[case] kind: Kind) {
    let setup = Setup::new(kind).await;
    let (store, key) = (&setup.store, mk_key());
    store.put(key, mk_entry([1, 2]), LONG).await.unwrap();
    let again = store.put(key, mk_entry([1, 2]), LONG).await;
    // over HTTP both are 204
    assert!(matches!(again, Ok(Put::Same | Put::Stored)), "{again:?}");
    let other = store.put(key, mk_entry([1, 3]), LONG).await;
    assert_eq!(other, Err(StoreError::Conflict));
    assert_eq!(store.get(key, LONG).await, Ok(Some(mk_entry([1, 2]))));
}

#[rstest]
#[case::memory(Kind::Memory)]
#[case::http(Kind::Http)]
#[case::redis(Kind::Redis)]
#[tokio::test]
async fn the_largest_entry_is_kept_and_a_larger_one_is_not(#[case] kind: Kind) {
    let setup = Setup::new(kind).await;
    let (store, key) = (&setup.store, mk_key());
    let entry = mk_entry(vec![7; MAX_IDS + 1]);
    let refused = store.put(key, entry, LONG).await;
    assert_eq!(refused, Err(StoreError::TooLarge));
    let entry = mk_entry(vec![7; MAX_IDS]);
    assert_eq!(store.put(key, entry.clone(), LONG).await, Ok(Put::Stored));
    assert_eq!(store.get(key, LONG).await, Ok(Some(entry)));
}

#[tokio::test]
async fn entries_in_redis_expire() {
    let setup = Setup::new(Kind::Redis).await;
    let key = mk_key();
    let settings = Settings {
        ttl: std::time::Duration::from_secs(77),
        ..Settings::default()
    };
    let url = setup.redis.as_ref().unwrap().url();
    let (store, upkeep) = Store::open(parse(&url), settings).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(upkeep.run());
    let setup = Setup {
        store,
        tasks,
        ..setup
    };
    setup.works().await;
    setup.store.put(key, mk_entry([1]), LONG).await.unwrap();
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let left: i64 = redis::cmd("TTL")
        .arg(redis_key(&key))
        .query(&mut connection)
        .unwrap();
    assert!((50..=77).contains(&left), "{left}");
}

#[tokio::test]
async fn a_damaged_value_in_redis_is_missing() {
    let setup = Setup::new(Kind::Redis).await;
    let key = mk_key();
    let url = setup.redis.as_ref().unwrap().url();
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let mut set = redis::cmd("SET");
    set.arg(redis_key(&key)).arg("ITK1 and something else");
    let () = set.query(&mut connection).unwrap();
    assert_eq!(setup.store.get(key, LONG).await, Ok(None));
    assert!(page(&setup.store).contains("{op=\"get\",result=\"damaged\"} 1"));
}

#[tokio::test]
async fn the_bearer_token_of_a_file_is_sent_and_never_shown() {
    let mut behind = Setup::new(Kind::Memory).await;
    let service = TokenService::new(behind.store.clone(), LONG);
    let address = serve(service, Some("Bearer s3cret"), &mut behind.tasks).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let open = |token: &str| {
        fs::write(&path, token).unwrap();
        let settings = Settings {
            token_file: Some(path.clone()),
            ..Settings::default()
        };
        Store::open(parse(&format!("http://{address}")), settings)
    };
    let (store, _) = open("\ns3cret\nnewer\n").unwrap();
    assert_eq!(store.get(mk_key(), LONG).await, Ok(None));
    let shown = format!("{store:?}");
    assert!(shown.contains("BearerToken"), "{shown}");
    assert!(!shown.contains("s3cret"), "{shown}");
    let (store, _) = open("other").unwrap();
    let refused = store.get(mk_key(), LONG).await;
    assert_eq!(refused, Err(StoreError::Refused(401)));
    let error = open("s3cret\u{7}").unwrap_err().to_string();
    assert!(error.contains("bearer token"), "{error}");
    assert!(!error.contains("s3cret"), "{error}");
}

#[tokio::test]
async fn operations_and_sizes_are_counted_as_documented() {
    let setup = Setup::new(Kind::Memory).await;
    let (store, key) = (&setup.store, mk_key());
    store.put(key, mk_entry([1, 2]), LONG).await.unwrap();
    store.get(key, LONG).await.unwrap();
    store.delete(mk_key(), LONG).await.unwrap();
    let page = page(store);
    for line in [
        "token_cache_operations_total{op=\"put\",result=\"stored\"} 1",
        "token_cache_operations_total{op=\"get\",result=\"hit\"} 1",
        "token_cache_operations_total{op=\"delete\",result=\"deleted\"} 1",
        "token_cache_operation_duration_seconds_count{op=\"put\"} 1",
        "token_cache_entries 1",
        "token_cache_evictions_total{cause=\"full\"} 0",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/token-cache.md");
    let docs = fs::read_to_string(docs).unwrap();
    let names = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for name in names.filter_map(|line| line.split(' ').next()) {
        assert!(docs.contains(&format!("`{name}")), "{name}");
    }
}

fn page(store: &Store) -> String {
    let mut registry = Registry::default();
    store.register(&mut registry);
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    page
}
