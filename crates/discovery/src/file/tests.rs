use std::{fs, os::unix::fs::symlink};

use futures::{FutureExt, StreamExt};
use rstest::rstest;
use tempfile::TempDir;

use super::*;

const TWO: &str = "endpoints:
- {name: a, namespace: ml, address: 10.0.0.1, port: 8000, labels: {llm-d.ai/engine-type: sglang, tier: gold}}
- {name: b, address: 'fd00::2', port: '8001'}
";

/// A directory with a file, and what is made of it.
struct Running {
    dir: TempDir,
    updates: Updates,
}

fn mk_one(address: &str) -> String {
    format!("endpoints: [{{name: a, address: {address}, port: 8000}}]")
}

fn addresses(members: &[Member]) -> Vec<String> {
    let members = members.iter();
    members.map(|member| member.address.to_string()).collect()
}

impl Running {
    /// Starts with this text, and takes the first updates.
    async fn start(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("e.yaml"), text).unwrap();
        let discovery = FileDiscovery::new(dir.path().join("e.yaml"), true).unwrap();
        let updates = Box::new(discovery).updates();
        let mut running = Self { dir, updates };
        assert_eq!(running.next().await, Update::Listed(Kind::File));
        assert!(matches!(running.next().await, Update::Members(_)));
        running
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("e.yaml")
    }

    /// By a rename: a read may be under way.
    fn write(&self, text: impl AsRef<[u8]>) {
        let new = self.dir.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.path()).unwrap();
    }

    async fn next(&mut self) -> Update {
        self.updates.next().await.unwrap()
    }

    /// What is reported within some polls; time is paused.
    async fn all(&mut self) -> Vec<Update> {
        let mut all = Vec::new();
        while let Ok(update) = tokio::time::timeout(3 * POLL, self.next()).await {
            all.push(update);
        }
        all
    }

    async fn members(&mut self) -> Vec<String> {
        match &self.all().await[..] {
            [Update::Listed(Kind::File), Update::Members(members)] => addresses(members),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for one failure.
    async fn failure(&mut self) -> &'static str {
        match &self.all().await[..] {
            [
                Update::Failed {
                    kind: Kind::File,
                    reason,
                    error,
                },
            ] => {
                assert!(error.contains("e.yaml: "), "{error}");
                reason
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_entry_is_a_member() {
    let Entries { members, odd, .. } = Entries::parse(TWO.as_bytes()).unwrap();
    assert_eq!(odd, []);
    assert_eq!(addresses(&members), ["10.0.0.1:8000", "[fd00::2]:8001"]);
    assert_eq!(members[0].id.to_string(), "ml/a-rank-0");
    assert_eq!(&*members[0].id.uid, "ml/a");
    assert_eq!(&*members[0].engine, "sglang");
    assert_eq!(members[0].labels.len(), 2);
    assert_eq!(&*members[1].id.uid, "default/b");
    assert_eq!(&*members[1].engine, "");
}

#[test]
fn json_is_read_as_well() {
    let text = "{\n\t\"endpoints\": [\n\t\t{\"name\": \"a\", \"address\": \"10.0.0.1\", \"port\": 8000, \"labels\": null}\n\t]\n}";
    let members = Entries::parse(text.as_bytes()).unwrap().members;
    assert_eq!(addresses(&members), ["10.0.0.1:8000"]);
}

#[rstest]
#[case("5", "endpoints[1]", "invalid type")]
#[case("{address: 10.0.0.2, port: 1}", "endpoints[1]", "missing field `name`")]
#[case("{name: b, port: 1}", "endpoints[1] (b)", "missing field `address`")]
#[case(
    "{name: b, address: 10.0.0.2}",
    "endpoints[1] (b)",
    "missing field `port`"
)]
#[case("{name: '', address: 10.0.0.2, port: 1}", "endpoints[1] ()", "no name")]
#[case(
    "{name: b/c, address: 10.0.0.2, port: 1}",
    "endpoints[1] (b/c)",
    "no name"
)]
#[case(
    "{name: b, namespace: 'x y', address: 10.0.0.2, port: 1}",
    "endpoints[1] (b)",
    "namespace"
)]
#[case(
    "{name: b, address: model.example, port: 1}",
    "endpoints[1] (b)",
    "no IP address"
)]
#[case(
    "{name: b, address: 0.0.0.0, port: 1}",
    "endpoints[1] (b)",
    "no IP address"
)]
#[case(
    "{name: b, address: '[::1]', port: 1}",
    "endpoints[1] (b)",
    "no IP address"
)]
#[case(
    "{name: b, address: 10.0.0.2, port: 0}",
    "endpoints[1] (b)",
    "1 to 65535"
)]
#[case(
    "{name: b, address: 10.0.0.2, port: 65536}",
    "endpoints[1] (b)",
    "1 to 65535"
)]
#[case(
    "{name: b, address: 10.0.0.2, port: http}",
    "endpoints[1] (b)",
    "1 to 65535"
)]
#[case(
    "{name: b, address: 10.0.0.2, port: 80.5}",
    "endpoints[1] (b)",
    "1 to 65535"
)]
#[case(
    "{name: b, address: 10.0.0.2, port: 1, labels: {a: 1}}",
    "endpoints[1] (b)",
    "string"
)]
#[case(
    "{name: b, address: 10.0.0.2, port: 1, weight: 2}",
    "endpoints[1] (b)",
    "unknown field `weight`"
)]
#[case(
    "{name: a, address: 10.0.0.2, port: 1}",
    "endpoints[1] (a)",
    "default/a is there already"
)]
#[case(
    "{name: b, address: 10.0.0.1, port: 8000}",
    "endpoints[1] (b)",
    "10.0.0.1:8000 is there already"
)]
fn a_bad_or_second_entry_is_skipped_by_name(
    #[case] entry: &str,
    #[case] name: &str,
    #[case] error: &str,
) {
    let text = format!(
        "endpoints: [{{name: a, address: 10.0.0.1, port: 8000}}, {entry}, {{name: c, address: 10.0.0.3, port: 1}}]"
    );
    let Entries { members, odd, .. } = Entries::parse(text.as_bytes()).unwrap();
    assert_eq!(addresses(&members), ["10.0.0.1:8000", "10.0.0.3:1"]);
    let [odd] = &odd[..] else { panic!("{odd:?}") };
    assert_eq!(odd.name, name);
    assert!(odd.error.contains(error), "{}", odd.error);
}

#[rstest]
#[case("", "Malformed")]
#[case("endpoints", "Malformed")]
#[case("endpoints: 5", "Malformed")]
#[case("endpoints: {}", "Malformed")]
#[case("endpoint: []", "Malformed")]
#[case("endpoints: []\nversion: 1", "Malformed")]
#[case(
    "endpoints: [{name: a, name: b, address: 10.0.0.1, port: 1}]",
    "Malformed"
)]
#[case("endpoints: [{name: a", "Malformed")]
#[case("endpoints: [{name: a, address: here, port: 1}]", "NoUsableEntry")]
fn a_file_that_is_no_list_is_refused(#[case] text: &str, #[case] reason: &str) {
    let error = Entries::parse(text.as_bytes()).unwrap_err();
    assert_eq!(error.reason(), reason, "{error}");
}

#[rstest]
#[case::of_another_shape(
    "- {name: a, address: 10.0.0.1, port: 1}",
    "expected a map with the list `endpoints`"
)]
#[case::of_aliases_that_multiply(
    &format!("endpoints: [{{name: &a {}}}, {}]", "x".repeat(100_000), "*a,".repeat(1000)),
    "aliases repeat too much"
)]
fn a_refusal_says_in_few_words_what_is_wrong(#[case] text: &str, #[case] part: &str) {
    let error = Entries::parse(text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains(part) && error.len() < 2000, "{error}");
}

#[test]
fn labels_may_be_those_of_another_endpoint() {
    let text = "endpoints:
- {name: a, address: 10.0.0.1, port: 1, labels: &l {tier: gold}}
- {name: b, address: 10.0.0.2, port: 1, labels: *l}
";
    let Entries { members, .. } = Entries::parse(text.as_bytes()).unwrap();
    assert_eq!(members[0].labels, members[1].labels);
}

#[test]
fn a_list_of_none_is_a_list() {
    let none = Entries::parse(b"endpoints: []").unwrap();
    assert_eq!(none.members, []);
}

#[test]
fn of_many_bad_entries_the_first_are_named() {
    let bad = "- 1\n".repeat(entries::MAX_ODD + 7);
    let text = format!("endpoints:\n- {{name: a, address: 10.0.0.1, port: 1}}\n{bad}");
    let Entries { odd, more_odd, .. } = Entries::parse(text.as_bytes()).unwrap();
    assert_eq!((odd.len(), more_odd), (entries::MAX_ODD, 7));
}

#[test]
fn at_the_start_a_file_must_be_usable() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let error = FileDiscovery::new(dir.path().join(name), true).unwrap_err();
        error.reason()
    };
    fs::write(dir.path().join("large"), vec![b' '; MAX_FILE + 1]).unwrap();
    fs::write(dir.path().join("bad"), "endpoints: 5").unwrap();
    assert_eq!(open("missing"), "Unreadable");
    assert_eq!(open("."), "NotAFile");
    assert_eq!(open("large"), "TooLarge");
    assert_eq!(open("bad"), "Malformed");
}

#[test]
fn a_file_of_the_largest_size_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut text = mk_one("10.0.0.1");
    text.push_str(&" ".repeat(MAX_FILE - text.len()));
    fs::write(dir.path().join("e.yaml"), text).unwrap();
    FileDiscovery::new(dir.path().join("e.yaml"), false).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_changes_the_members_and_an_equal_one_nothing() {
    let mut running = Running::start(&mk_one("10.0.0.1")).await;
    running.write(mk_one("10.0.0.1"));
    assert_eq!(running.all().await, []);
    running.write(TWO);
    let two = ["10.0.0.1:8000", "[fd00::2]:8001"];
    assert_eq!(running.members().await, two);
    running.write("endpoints: []");
    assert_eq!(running.members().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_bad_entry_is_reported_once_and_costs_no_other() {
    let mut running = Running::start(&mk_one("10.0.0.1")).await;
    running.write(
        "endpoints: [{name: b, address: x, port: 1}, {name: a, address: 10.0.0.2, port: 1}]",
    );
    let all = running.all().await;
    let [
        Update::Odd { name, error, .. },
        Update::Listed(_),
        Update::Members(members),
    ] = &all[..]
    else {
        panic!("{all:?}");
    };
    assert_eq!(name, "endpoints[0] (b)");
    assert!(error.starts_with("skipped: address \"x\""), "{error}");
    assert_eq!(addresses(members), ["10.0.0.2:1"]);
}

/// As the kubelet replaces the files of a `ConfigMap`.
#[tokio::test(start_paused = true)]
async fn a_swapped_symlink_is_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (version, address) in [("..1", "10.0.0.1"), ("..2", "10.0.0.2")] {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("e.yaml"), mk_one(address)).unwrap();
    }
    symlink("..1", at("..data")).unwrap();
    symlink("..data/e.yaml", at("e.yaml")).unwrap();
    let discovery = FileDiscovery::new(at("e.yaml"), true).unwrap();
    let updates = Box::new(discovery).updates();
    let mut running = Running { dir, updates };
    assert_eq!(running.members().await, ["10.0.0.1:8000"]);
    let at = |name: &str| running.dir.path().join(name);
    symlink("..2", at("..new")).unwrap();
    fs::rename(at("..new"), at("..data")).unwrap();
    fs::remove_dir_all(at("..1")).unwrap();
    assert_eq!(running.members().await, ["10.0.0.2:8000"]);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_turned_bad_keeps_the_members_until_it_is_good_again() {
    let mut running = Running::start(&mk_one("10.0.0.1")).await;
    running.write("endpoints: [");
    assert_eq!(running.failure().await, "Malformed");
    assert_eq!(running.all().await, [], "reported once");
    running.write("");
    assert_eq!(running.failure().await, "Malformed");
    running.write(vec![b' '; MAX_FILE + 1]);
    assert_eq!(running.failure().await, "TooLarge");
    fs::remove_file(running.path()).unwrap();
    assert_eq!(running.failure().await, "Unreadable");
    assert_eq!(running.all().await, [], "reported once");
    running.write(mk_one("10.0.0.1"));
    assert_eq!(
        running.all().await,
        [Update::Listed(Kind::File)],
        "the members never changed"
    );
    running.write(mk_one("10.0.0.2"));
    assert_eq!(running.members().await, ["10.0.0.2:8000"]);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_not_watched_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("e.yaml");
    fs::write(&path, mk_one("10.0.0.1")).unwrap();
    let discovery = FileDiscovery::new(&path, false).unwrap();
    let updates = Box::new(discovery).updates();
    let mut running = Running { dir, updates };
    assert_eq!(running.members().await, ["10.0.0.1:8000"]);
    running.write(mk_one("10.0.0.2"));
    assert_eq!(running.all().await, []);
    assert!(
        running.updates.next().now_or_never().is_none(),
        "and never ends"
    );
}
