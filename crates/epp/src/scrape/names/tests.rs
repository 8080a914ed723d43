use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn mk_names(names: &[&str]) -> Names<usize> {
    let wanted = names.iter().map(|name| (*name).to_owned());
    Names::new(wanted.zip(0..))
}

#[rstest]
#[case::plain("vllm:running 5", &[1], " 5")]
#[case::labels("vllm:run{a=\"b\"} 5", &[2], "{a=\"b\"} 5")]
#[case::tab("process\t5", &[3], "\t5")]
#[case::two_meanings("vllm:waiting 5", &[0, 4], " 5")]
#[case::one_byte("v 5", &[5], " 5")]
fn a_line_is_found_by_its_whole_name(
    #[case] line: &str,
    #[case] wanted: &[usize],
    #[case] behind: &str,
) {
    let names = mk_names(&[
        "vllm:waiting",
        "vllm:running",
        "vllm:run",
        "process",
        "vllm:waiting",
        "v",
        "",
    ]);
    assert_eq!(
        names.find(line.as_bytes()),
        Some((wanted, behind.as_bytes()))
    );
}

#[rstest]
#[case::empty("")]
#[case::comment("# HELP vllm:running x")]
#[case::longer("vllm:running_total 5")]
#[case::shorter("vllm:runnin 5")]
#[case::cut("vllm:running")]
#[case::only_the_prefix("vllm: 5")]
#[case::blank_before(" vllm:running 5")]
fn another_line_is_not_found(#[case] line: &str) {
    let names = mk_names(&["vllm:running", "vllm:waiting"]);
    assert_eq!(names.find(line.as_bytes()), None);
}

proptest! {
    #[test]
    fn it_finds_what_a_plain_search_finds(
        names in proptest::collection::vec("[ab:]{0,4}", 0..6),
        line in "[ab:]{0,5}[ {x]?[ab ]{0,2}",
    ) {
        let wanted = names.iter().cloned().zip(0..);
        let table = Names::new(wanted.clone());
        let plain: Vec<usize> = wanted
            .filter(|(name, _)| !name.is_empty())
            .filter(|(name, _)| {
                let behind = line.strip_prefix(name.as_str());
                behind.is_some_and(|behind| behind.starts_with(['{', ' ']))
            })
            .map(|(_, index)| index)
            .collect();
        let found = table.find(line.as_bytes()).map(|(wanted, _)| wanted);
        prop_assert_eq!(found.unwrap_or_default(), plain);
        if found.is_some() {
            for end in 0..=line.len() {
                prop_assert!(table.may_begin(&line.as_bytes()[..end]), "cut at {}", end);
            }
        }
    }
}
