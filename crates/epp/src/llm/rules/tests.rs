use std::collections::BTreeMap;

use rand::{SeedableRng, rngs::StdRng};
use rstest::rstest;

use super::*;
use crate::{config::Compat, llm::LlmFilter};

fn mk_table(rest: &str) -> Table {
    let text = format!("protocol: openai\n{rest}");
    let filter = LlmFilter::parse(&text, Compat::Strict);
    filter
        .unwrap_or_else(|refusals| panic!("{text}: {refusals}"))
        .rules
}

/// A table of one model `m` with these rules.
fn mk_rules(rules: &str) -> Table {
    mk_table(&format!("model_mapping_rule: {{m: {{rules: [{rules}]}}}}"))
}

fn find(
    table: &Table,
    model: &str,
    fields: &[(&'static str, &'static str)],
    seed: u64,
) -> Result<Match, RuleError> {
    let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| (bytes(name), bytes(value)))
        .collect();
    table.find(
        model,
        &Headers::new(&fields),
        &mut StdRng::seed_from_u64(seed),
    )
}

fn scene(found: Result<Match, RuleError>) -> String {
    match found {
        Ok(found) => found.rule.scene_name.to_string(),
        Err(error) => error.reason().to_owned(),
    }
}

fn mk_labels(labels: &[(&str, &str)]) -> Labels {
    labels
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect()
}

/// The least particular one first, as a file may have it.
const ABC: &str = "
  {scene_name: C, cluster: c},
  {scene_name: B, cluster: c, headers: [{key: X-Env, value: prod}]},
  {scene_name: A, cluster: c, headers: [{key: x-env, value: prod}, {key: x-region, value: us}]}";

#[rstest]
#[case(&[("x-env", "prod"), ("x-region", "us")], "A")]
#[case(&[("x-env", "prod"), ("x-region", "eu")], "B")]
#[case(&[("x-region", "us")], "C")]
#[case(&[], "C")]
#[case::the_value_is_exact(&[("x-env", "Prod")], "C")]
#[case::the_name_is_not(&[("X-ENV", "prod")], "B")]
#[case::of_a_repeated_one_the_first_counts(&[("x-env", "dev"), ("x-env", "prod")], "C")]
fn the_rule_with_most_headers_counts(
    #[case] fields: &[(&'static str, &'static str)],
    #[case] want: &str,
) {
    assert_eq!(scene(find(&mk_rules(ABC), "m", fields, 1)), want);
}

#[test]
fn of_rules_with_as_many_headers_the_first_of_the_file_counts() {
    let table = mk_rules(
        "{scene_name: first, cluster: c, headers: [{key: a, value: x}]},
         {scene_name: second, cluster: c, headers: [{key: b, value: x}]},
         {scene_name: third, cluster: c, headers: [{key: a, value: x}]}",
    );
    assert_eq!(
        scene(find(&table, "m", &[("b", "x"), ("a", "x")], 1)),
        "first"
    );
}

#[test]
fn without_a_rule_for_its_headers_a_request_is_told_what_they_are_for() {
    let table = mk_rules(
        "{cluster: c, headers: [{key: x-env, value: prod}, {key: b, value: c}]}, {cluster: c, headers: [{key: x-env, value: dev}]}",
    );
    let error = find(&table, "m", &[("x-env", "test")], 1).expect_err("no rule");
    assert_eq!(
        error.to_string(),
        "no rule of the model \"m\" is for the headers of this request: \
         expected x-env: prod and b: c, or x-env: dev"
    );
}

#[rstest]
#[case("M")]
#[case("other")]
#[case("")]
fn a_model_of_no_rule_is_not_found(#[case] model: &str) {
    let found = find(&mk_rules(ABC), model, &[], 1);
    assert_eq!(found, Err(RuleError::ModelNotFound(model.to_owned())));
}

const ADAPTERS: &str = "model_mapping_rule:
  base:
    rules:
    - {scene_name: plain, cluster: c}
    - {scene_name: lora, cluster: c, headers: [{key: x, value: y}],
       subset: [{name: one, lora: sql, labels: {gpu: a}}, {name: two, lora: law}]}
    - {scene_name: default, cluster: c, subset: [{name: three, lora: sql}, {name: four}]}
  other:
    rules:
    - {scene_name: late, cluster: c, subset: [{lora: sql}, {lora: base}, {lora: art}]}
";

#[rstest]
#[case::with_headers("sql", &[("x", "y")], "lora", "one")]
#[case::without("sql", &[], "default", "three")]
#[case::of_a_later_model("art", &[], "late", "")]
fn a_request_that_names_an_adapter_gets_its_subset(
    #[case] model: &str,
    #[case] fields: &[(&'static str, &'static str)],
    #[case] rule: &str,
    #[case] subset: &str,
) {
    for seed in 0..20 {
        let found = find(&mk_table(ADAPTERS), model, fields, seed).expect("found");
        assert_eq!(&*found.rule.scene_name, rule);
        assert_eq!(found.subset.as_ref().map(|one| &*one.name), Some(subset));
        assert_eq!(found.adapter(), None, "the client named it");
    }
}

#[test]
fn an_adapter_of_rules_for_other_headers_only_is_not_served() {
    assert_eq!(
        scene(find(&mk_table(ADAPTERS), "law", &[], 1)),
        "rule-not-found"
    );
}

/// `base` is an adapter of `other` as well.
#[test]
fn a_model_counts_before_an_adapter_of_its_name() {
    let found = find(&mk_table(ADAPTERS), "base", &[], 1);
    assert_eq!(found.expect("found").model.as_deref(), Some("base"));
}

#[test]
fn the_adapter_of_a_rule_takes_the_place_of_the_model() {
    let table = mk_rules("{cluster: c, subset: [{lora: sql}]}");
    let found = find(&table, "m", &[], 1).expect("found");
    assert_eq!(found.adapter().map(|one| &**one), Some("sql"));
    assert_eq!(table.names().collect::<Vec<_>>(), ["m", "sql"]);
}

/// Names of subsets, weights, and the share of each in percent.
#[rstest]
#[case("{name: a, weight: 3}, {name: b, weight: 1}", &[("a", 75), ("b", 25)])]
#[case::none_has_one("{name: a}, {name: b}", &[("a", 50), ("b", 50)])]
#[case::all_are_zero("{name: a, weight: 0}, {name: b, weight: 0}", &[("a", 50), ("b", 50)])]
#[case::one_is_zero("{name: a, weight: 0}, {name: b, weight: 1}", &[("b", 100)])]
#[case::an_absent_one_is_one("{name: a, weight: 9}, {name: b}", &[("a", 90), ("b", 10)])]
fn subsets_are_chosen_by_weight(#[case] subsets: &str, #[case] want: &[(&str, i32)]) {
    let table = mk_rules(&format!("{{cluster: c, subset: [{subsets}]}}"));
    let mut counts: BTreeMap<String, i32> = BTreeMap::new();
    for seed in 0..2_000 {
        let subset = find(&table, "m", &[], seed)
            .expect("found")
            .subset
            .expect("a subset");
        *counts.entry(subset.name.to_string()).or_default() += 1;
    }
    assert_eq!(counts.len(), want.len(), "{counts:?}");
    for (name, percent) in want {
        let share = counts[*name] * 100 / 2_000;
        assert!((share - percent).abs() <= 4, "{name}: {share} %");
    }
}

const CLUSTERS: &str = "clusters: {here: {pool: a}, there: {pool: b}}
model_mapping_rule:
  m: {rules: [{cluster: here, subset: [{labels: {gpu: big}}]}]}
  n: {rules: [{cluster: elsewhere}]}
";

#[test]
fn a_rule_for_the_cluster_of_another_pool_is_not_served() {
    let error = find(&mk_table(CLUSTERS), "n", &[], 1).expect_err("not here");
    assert_eq!(error.reason(), "cluster-not-served");
    assert!(error.to_string().contains("elsewhere"), "{error}");
}

#[rstest]
#[case(&[("pool", "a"), ("gpu", "big"), ("zone", "1")], true)]
#[case(&[("pool", "b"), ("gpu", "big")], false)]
#[case(&[("pool", "a"), ("gpu", "small")], false)]
#[case(&[("pool", "a")], false)]
fn endpoints_have_the_labels_of_the_cluster_and_of_the_subset(
    #[case] labels: &[(&str, &str)],
    #[case] admitted: bool,
) {
    let found = find(&mk_table(CLUSTERS), "m", &[], 1).expect("found");
    assert_eq!(found.admits(&mk_labels(labels)), admitted);
}

#[test]
fn an_error_names_the_labels_that_no_endpoint_has() {
    let found = find(&mk_table(CLUSTERS), "m", &[], 1).expect("found");
    assert_eq!(
        found.labels_match_none("m").to_string(),
        "no model server has the labels pool=a,gpu=big that the rule of the model \"m\" asks for"
    );
}

#[rstest]
#[case::only_one("model_mapping_rule: {m: {rules: [{cluster: c}]}}", "c")]
#[case::several(CLUSTERS, "ns/pool")]
fn a_model_that_is_served_without_a_rule_goes_to_the_whole_pool(
    #[case] file: &str,
    #[case] cluster: &str,
) {
    let found = mk_table(file).default_match(&"ns/pool".parse().expect("a name"));
    assert_eq!((found.cluster.as_str(), &found.model), (cluster, &None));
    assert!(found.admits(&Labels::new()));
    assert_eq!(
        (found.adapter(), &found.rule.backend),
        (None, &Backend::Vllm)
    );
}

#[test]
fn of_many_rules_an_error_lists_the_first() {
    let rule = |nth: usize| {
        let value = "x".repeat(40);
        format!("{{cluster: c, headers: [{{key: x-{nth}, value: {value}}}]}}")
    };
    let rules: Vec<_> = (0..9).map(rule).collect();
    let error = find(&mk_rules(&rules.join(", ")), "m", &[], 1).unwrap_err();
    let RuleError::RuleNotFound { wanted, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(wanted.len(), MAX_WANTED + 3, "{wanted}");
    assert!(wanted.ends_with("..."), "{wanted}");
}

#[test]
fn names_are_the_models_in_their_order_and_then_the_adapters_by_name() {
    let subsets = "subset: [{lora: law}, {lora: code}, {lora: sql}]";
    let rules = format!("{{rules: [{{cluster: c, {subsets}}}]}}");
    let table = mk_table(&format!(
        "model_mapping_rule: {{z: {rules}, a: {{rules: [{{cluster: c}}]}}}}"
    ));
    let names: Vec<_> = table.names().collect();
    assert_eq!(names, ["z", "a", "code", "law", "sql"]);
}
