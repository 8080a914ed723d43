use rstest::rstest;

use super::*;

fn read(reader: &mut LoraReader, series: &[&str]) -> PageLora {
    for line in series {
        reader.read(Sample::parse(line.as_bytes()).unwrap());
    }
    reader.finish()
}

fn mk_lora(running: &[&str], waiting: &[&str], max: u32) -> Lora {
    let list = |names: &[&str]| names.iter().map(|name| Box::from(*name)).collect();
    Lora {
        running: list(running),
        waiting: list(waiting),
        max,
    }
}

#[test]
fn the_series_with_the_greatest_time_counts() {
    let lora = read(
        &mut LoraReader::default(),
        &[
            r#"{max_lora="4",running_lora_adapters="old",waiting_lora_adapters="x"} 1.7e9"#,
            r#"{max_lora="4",running_lora_adapters=" a , b,",waiting_lora_adapters=""} 1.7000000001e9"#,
            r#"{max_lora="4",running_lora_adapters="older",waiting_lora_adapters=""} 1.6e9"#,
            r#"{max_lora="4",running_lora_adapters="never",waiting_lora_adapters=""} NaN"#,
        ],
    );
    assert_eq!(lora, PageLora::Now(mk_lora(&["a", "b"], &[], 4)));
}

#[rstest]
#[case::escapes(r#"{running_lora_adapters="a\\b, c\"d",max_lora="1"} 1"#, mk_lora(&["a\\b", "c\"d"], &[], 1))]
#[case::waiting(r#"{waiting_lora_adapters="w",max_lora="2.0"} 1"#, mk_lora(&[], &["w"], 2))]
#[case::no_number(r#"{running_lora_adapters="a",max_lora="many"} 1"#, mk_lora(&["a"], &[], 0))]
#[case::other_labels(r#"{x="y"} 1"#, mk_lora(&[], &[], 0))]
fn labels_are_read_or_missing(#[case] line: &str, #[case] lora: Lora) {
    assert_eq!(
        read(&mut LoraReader::default(), &[line]),
        PageLora::Now(lora)
    );
}

#[test]
fn adapters_are_reported_when_they_change() {
    let mut reader = LoraReader::default();
    let a = [r#"{running_lora_adapters="a"} 1"#];
    let b = [r#"{running_lora_adapters="b"} 3"#];
    let now = |name| PageLora::Now(mk_lora(&[name], &[], 0));
    assert_eq!(read(&mut reader, &a), now("a"));
    assert_eq!(read(&mut reader, &a), PageLora::Unchanged);
    let later = [r#"{running_lora_adapters="a"} 2"#];
    assert_eq!(
        read(&mut reader, &later),
        PageLora::Unchanged,
        "at another time"
    );
    assert_eq!(read(&mut reader, &b), now("b"));
    assert_eq!(read(&mut reader, &[]), PageLora::Absent);
    assert_eq!(read(&mut reader, &b), now("b"), "a restart may be between");
    reader.reset();
    assert_eq!(read(&mut reader, &b), now("b"), "nobody took the last");
}

#[test]
fn a_metric_without_series_says_that_no_adapter_is_loaded() {
    let mut reader = LoraReader::default();
    let none = PageLora::Now(mk_lora(&[], &[], 1));
    let a = [r#"{running_lora_adapters="a",max_lora="4"} 1"#];
    for want in [none.clone(), PageLora::Unchanged] {
        reader.declared();
        assert_eq!(reader.finish(), want);
    }
    reader.declared();
    assert_eq!(
        read(&mut reader, &a),
        PageLora::Now(mk_lora(&["a"], &[], 4))
    );
    assert_eq!(reader.finish(), PageLora::Absent, "declared no more");
    reader.declared();
    assert_eq!(reader.finish(), none);
}

#[test]
fn a_list_without_end_is_bounded() {
    let long = "x".repeat(MAX_NAME);
    let names: Vec<_> = (0..2000).map(|index| format!("adapter-{index}")).collect();
    let line = format!(
        "{{running_lora_adapters=\"y{long},{long},\u{e9},{}\"}} 1",
        names.join(",")
    );
    let PageLora::Now(lora) = read(&mut LoraReader::default(), &[&line]) else {
        panic!("the first page")
    };
    assert_eq!(lora.running.len(), MAX_ADAPTERS);
    assert_eq!(*lora.running[0], *long, "the longer one before is left out");
    assert_eq!(&*lora.running[1], "\u{e9}");
    assert_eq!(&*lora.running[2], "adapter-0");
}

/// Two processes share the page, and each of them updated the first series.
#[test]
fn of_sums_of_times_the_one_that_changed_last_counts() {
    let mut reader = LoraReader::default();
    reader.begin(1.76e9);
    let old = |at: f64| format!(r#"{{running_lora_adapters="old",max_lora="2"}} {at}"#);
    let new = |at: f64| format!(r#"{{running_lora_adapters="new",max_lora="2"}} {at}"#);
    let none = r#"{running_lora_adapters="",max_lora="2"} 1.759e9"#;
    let now = |name: &str| PageLora::Now(mk_lora(&[name], &[], 2));
    let mut page = |series: &[&str]| read(&mut reader, series);
    assert_eq!(page(&[&old(3.52e9)]), PageLora::Absent, "nobody knows");
    assert_eq!(
        page(&[&old(3.52e9), &new(1.76e9)]),
        now("new"),
        "the only time"
    );
    assert_eq!(page(&[&old(3.52e9), &new(1.76e9)]), PageLora::Unchanged);
    assert_eq!(page(&[&old(3.6e9), &new(1.76e9)]), now("old"), "set again");
    assert_eq!(
        page(&[&old(3.6e9), &new(3.52e9)]),
        now("new"),
        "by the other process"
    );
    let third = [&*old(3.6e9), &new(3.52e9), none];
    assert_eq!(
        page(&third),
        PageLora::Now(mk_lora(&[], &[], 2)),
        "a new one"
    );
    assert_eq!(page(&third), PageLora::Unchanged);
    reader.declared();
    assert_eq!(
        reader.finish(),
        PageLora::Now(mk_lora(&[], &[], 1)),
        "restarted"
    );
}

/// The first page after a restart has the same series with smaller sums: it is not known which adapters are loaded now.
#[test]
fn sums_that_become_smaller_are_those_of_other_processes() {
    let mut reader = LoraReader::default();
    reader.begin(1.76e9);
    let a = |at: f64| format!(r#"{{running_lora_adapters="a",max_lora="2"}} {at}"#);
    let b = |at: f64| format!(r#"{{running_lora_adapters="b",max_lora="2"}} {at}"#);
    let now = |name: &str| PageLora::Now(mk_lora(&[name], &[], 2));
    let mut page = |series: &[&str]| read(&mut reader, series);
    assert_eq!(page(&[&a(3.5e9), &b(3.6e9)]), PageLora::Absent);
    assert_eq!(page(&[&a(5.2e9), &b(3.6e9)]), now("a"));
    assert_eq!(page(&[&a(3.5e9), &b(3.52e9)]), PageLora::Absent);
    assert_eq!(page(&[&a(3.5e9), &b(3.52e9)]), PageLora::Absent);
    assert_eq!(page(&[&a(3.5e9), &b(3.53e9)]), now("b"));
}
