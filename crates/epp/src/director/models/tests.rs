use ::discovery::{Model, Objective, Objects, Rewrite, Target};
use bytes::Bytes;
use rand::{SeedableRng, rngs::StdRng};
use rstest::rstest;

use super::*;
use crate::{
    body::Api,
    config::{Config, RewriteRule, RewriteTarget, TrustedHeaders},
};

mod properties;

fn mk_head(fields: &[(&str, &str)]) -> RequestHead {
    let bytes = |text: &str| Bytes::from(text.to_owned());
    let fields = fields
        .iter()
        .map(|(name, value)| (bytes(name), bytes(value)));
    RequestHead {
        fields: fields.collect(),
        ..RequestHead::default()
    }
}

fn mk_parsed(model: &str) -> Parsed {
    let api = Api::for_path(b"/v1/completions").unwrap().unwrap();
    api.parse(format!(r#"{{"model":"{model}"}}"#).as_bytes())
        .unwrap()
}

/// A rule of the file.
fn mk_rule(models: &[&str], targets: &[(&str, u32)]) -> RewriteRule {
    let targets = targets.iter().map(|(model, weight)| RewriteTarget {
        model: (*model).to_owned(),
        weight: *weight,
    });
    RewriteRule {
        models: models.iter().map(|model| (*model).to_owned()).collect(),
        targets: targets.collect(),
    }
}

fn mk_targets(targets: &[(&str, u32)]) -> Vec<Target> {
    let targets = targets.iter().map(|(model, weight)| Target {
        model: (*model).to_owned(),
        weight: *weight,
    });
    targets.collect()
}

/// A rule of an object.
fn mk_rewrite(models: &[&str], target: &str) -> Rewrite {
    Rewrite {
        models: models.iter().map(|model| (*model).to_owned()).collect(),
        targets: mk_targets(&[(target, 1)]),
    }
}

fn mk_model(name: &str, priority: i32, targets: &[(&str, u32)]) -> Model {
    Model {
        name: name.to_owned(),
        priority,
        targets: mk_targets(targets),
    }
}

fn mk_objective(name: &str, priority: i32) -> Objective {
    Objective {
        name: name.to_owned(),
        priority,
    }
}

fn listing(models: &[&str]) -> Config {
    Config {
        models: models.iter().map(|model| (*model).to_owned()).collect(),
        trusted_headers: TrustedHeaders {
            objective: true,
            fairness: true,
            model_name_rewrite: false,
        },
        ..Config::default()
    }
}

/// What a request for this model comes to.
fn go(models: &Models, head: &RequestHead, model: &str) -> Result<Resolved, Reject> {
    go_by(models, ModelMatch::Auto, head, model)
}

fn go_by(
    models: &Models,
    matching: ModelMatch,
    head: &RequestHead,
    model: &str,
) -> Result<Resolved, Reject> {
    let parsed = mk_parsed(model);
    let rng = &mut StdRng::seed_from_u64(1);
    resolve(models, matching, head, true, false, Some(&parsed), rng)
}

/// What servers get for a model.
fn target(models: &Models, head: &RequestHead, model: &str) -> String {
    let resolved = go(models, head, model).unwrap();
    assert_eq!(resolved.model.as_deref(), Some(model));
    resolved.target.unwrap().to_string()
}

fn not_found(model: &str) -> Result<Resolved, Reject> {
    Err(Reject::ModelNotFound(Some(model.to_owned())))
}

#[rstest]
#[case::unlisted_and_no_list(&[], ModelMatch::Auto, Some("m"), true, true)]
#[case::listed(&["m"], ModelMatch::Auto, Some("m"), true, true)]
#[case::unlisted(&["n"], ModelMatch::Auto, Some("m"), true, false)]
#[case::hidden_by_the_mode(&["n"], ModelMatch::Auto, None, true, false)]
#[case::another_path(&["n"], ModelMatch::Auto, None, false, true)]
#[case::strict_without_a_list(&[], ModelMatch::Strict, Some("m"), true, false)]
#[case::strict_on_another_path(&[], ModelMatch::Strict, None, false, false)]
#[case::off(&["n"], ModelMatch::Off, Some("m"), true, true)]
fn models_that_nobody_lists_are_refused(
    #[case] listed: &[&str],
    #[case] matching: ModelMatch,
    #[case] model: Option<&str>,
    #[case] is_inference: bool,
    #[case] found: bool,
    #[values(true, false)] by_objects: bool,
) {
    let models = if by_objects {
        let objects = Objects {
            models: listed.iter().map(|name| mk_model(name, 0, &[])).collect(),
            ..Objects::default()
        };
        Models::merge(&Config::default(), &objects)
    } else {
        Models::merge(&listing(listed), &Objects::default())
    };
    let parsed = model.map(mk_parsed);
    let (head, rng) = (RequestHead::default(), &mut StdRng::seed_from_u64(1));
    let parsed = parsed.as_ref();
    let got = resolve(&models, matching, &head, is_inference, false, parsed, rng);
    match got {
        Ok(resolved) => assert!(found && resolved.model.as_deref() == model),
        Err(reject) => {
            assert!(!found);
            assert_eq!(reject, Reject::ModelNotFound(model.map(str::to_owned)));
        }
    }
}

/// Too long to be seen whole in some modes: neither refused as unknown nor sent on under the wrong name.
#[test]
fn a_model_that_was_not_seen_is_an_error_where_it_matters() {
    let go = |config: &Config, objects: &Objects, matching| {
        let models = Models::merge(config, objects);
        let (head, rng) = (RequestHead::default(), &mut StdRng::seed_from_u64(1));
        resolve(&models, matching, &head, true, true, None, rng)
    };
    let (none, no_objects) = (Config::default(), Objects::default());
    assert!(go(&none, &no_objects, ModelMatch::Auto).is_ok());
    let rewritten = Config {
        rewrites: vec![mk_rule(&[], &[("n", 1)])],
        ..Config::default()
    };
    let by_object = Objects {
        rewrites: vec![mk_rewrite(&["m"], "n")],
        ..Objects::default()
    };
    let by_model = Objects {
        models: vec![mk_model("m", 0, &[("n", 1)])],
        ..Objects::default()
    };
    for (config, objects, matching) in [
        (&listing(&["m"]), &no_objects, ModelMatch::Auto),
        (&rewritten, &no_objects, ModelMatch::Auto),
        (&none, &by_object, ModelMatch::Auto),
        (&none, &by_model, ModelMatch::Off),
    ] {
        assert_eq!(go(config, objects, matching), Err(Reject::BodyNotSeen));
    }
}

/// A browser's preflight has no model.
#[test]
fn a_request_without_a_body_is_no_question_of_models() {
    let models = Models::merge(&listing(&["m"]), &Objects::default());
    let head = RequestHead {
        end: true,
        ..RequestHead::default()
    };
    let rng = &mut StdRng::seed_from_u64(1);
    assert!(resolve(&models, ModelMatch::Auto, &head, true, false, None, rng).is_ok());
}

#[test]
fn an_exact_rule_comes_before_a_general_one_and_the_first_of_each_counts() {
    let config = Config {
        rewrites: vec![
            mk_rule(&[], &[("all", 1)]),
            mk_rule(&["m"], &[("first", 1)]),
            mk_rule(&["m", "n"], &[("second", 1)]),
        ],
        ..Config::default()
    };
    let models = Models::merge(&config, &Objects::default());
    for (model, expected) in [("m", "first"), ("n", "second"), ("o", "all")] {
        assert_eq!(target(&models, &RequestHead::default(), model), expected);
    }
}

/// The rules of the file count as those of the youngest object: after all others of their sort.
#[test]
fn rules_of_objects_come_before_those_of_the_file() {
    let config = Config {
        rewrites: vec![
            mk_rule(&["m", "n"], &[("file", 1)]),
            mk_rule(&[], &[("file-all", 1)]),
        ],
        ..Config::default()
    };
    let mut objects = Objects {
        rewrites: vec![mk_rewrite(&["m"], "old"), mk_rewrite(&["m"], "young")],
        ..Objects::default()
    };
    let head = RequestHead::default();
    let models = Models::merge(&config, &objects);
    for (model, expected) in [("m", "old"), ("n", "file"), ("o", "file-all")] {
        assert_eq!(target(&models, &head, model), expected);
    }
    objects.rewrites.push(mk_rewrite(&[], "old-all"));
    let models = Models::merge(&config, &objects);
    for (model, expected) in [("m", "old"), ("n", "file"), ("o", "old-all")] {
        assert_eq!(target(&models, &head, model), expected);
    }
}

#[test]
fn targets_of_a_model_come_after_all_rules() {
    let mut objects = Objects {
        models: vec![mk_model("m", 0, &[("of-model", 1)]), mk_model("n", 0, &[])],
        ..Objects::default()
    };
    let head = RequestHead::default();
    let models = Models::merge(&Config::default(), &objects);
    assert_eq!(target(&models, &head, "m"), "of-model");
    assert_eq!(target(&models, &head, "n"), "n", "it has no targets");
    objects.rewrites.push(mk_rewrite(&[], "all"));
    let models = Models::merge(&Config::default(), &objects);
    assert_eq!(target(&models, &head, "m"), "all");
}

/// A name can be kept from others by targets without a weight.
#[test]
fn a_reserved_model_is_not_found() {
    let objects = Objects {
        models: vec![mk_model("m", 0, &[("a", 0), ("b", 0)])],
        ..Objects::default()
    };
    let models = Models::merge(&Config::default(), &objects);
    let head = RequestHead::default();
    assert_eq!(go(&models, &head, "m"), not_found("m"));
    let off = go_by(&models, ModelMatch::Off, &head, "m").unwrap();
    assert_eq!(off.target.as_deref(), Some("m"));
}

#[test]
fn targets_are_chosen_by_their_weights() {
    let objects = Objects {
        models: vec![mk_model("m", 0, &[("a", 1), ("none", 0), ("b", 3)])],
        ..Objects::default()
    };
    let models = Models::merge(&Config::default(), &objects);
    let targets = models.get("m").and_then(|model| model.targets.as_ref());
    let targets = targets.expect("targets");
    let mut rng = StdRng::seed_from_u64(7);
    let mut count = |name: &str| {
        let chosen = (0..4_000).filter(|_| targets.choose(&mut rng).unwrap().as_ref() == name);
        chosen.count()
    };
    assert!((850..1_150).contains(&count("a")));
    assert!((2_850..3_150).contains(&count("b")));
    assert_eq!(count("none"), 0);
}

/// The named objective, of an object or else of the file; the model's criticality; 0.
#[rstest]
#[case::of_an_object(Some("both"), "m", 7)]
#[case::of_the_file(Some("file"), "m", -5)]
#[case::unknown_objective(Some("other"), "m", 1)]
#[case::no_objective(None, "m", 1)]
#[case::no_criticality(None, "n", 0)]
fn the_priority_is_of_the_first_that_says_one(
    #[case] objective: Option<&str>,
    #[case] model: &str,
    #[case] priority: i32,
) {
    let config = Config {
        objectives: [("both".to_owned(), -9), ("file".to_owned(), -5)].into(),
        ..listing(&["m", "n"])
    };
    let objects = Objects {
        objectives: vec![mk_objective("both", 7), mk_objective("both", 8)],
        models: vec![mk_model("m", 1, &[]), mk_model("m", -1, &[("younger", 1)])],
        ..Objects::default()
    };
    let models = Models::merge(&config, &objects);
    let field = objective.map(|name| ("x-llm-d-inference-objective", name));
    let head = mk_head(field.as_slice());
    assert_eq!(go(&models, &head, model).unwrap().priority, priority);
    assert_eq!(target(&models, &head, model), model, "the older counts");
}

#[rstest]
#[case::empty(&[("x-llm-d-inference-fairness-id", "")], None)]
#[case::the_alias_beside_it(
    &[("x-llm-d-inference-fairness-id", ""), ("x-gateway-inference-fairness-id", "team")], Some("team"))]
fn an_empty_fairness_header_names_no_flow(
    #[case] fields: &[(&str, &str)],
    #[case] flow: Option<&str>,
) {
    let models = Models::merge(&listing(&[]), &Objects::default());
    let resolved = go(&models, &mk_head(fields), "m").unwrap();
    assert_eq!(resolved.fairness_id.as_deref(), flow);
}

#[test]
fn headers_count_only_as_far_as_they_are_trusted() {
    let head = mk_head(&[
        ("x-gateway-inference-objective", "batch"),
        ("x-llm-d-inference-fairness-id", "team"),
        ("x-llm-d-model-name-rewrite", "forced"),
    ]);
    let mut config = Config {
        objectives: [("batch".to_owned(), -3)].into(),
        ..listing(&["listed"])
    };
    let objects = Objects {
        rewrites: vec![mk_rewrite(&[], "by-rule")],
        ..Objects::default()
    };
    let models = Models::merge(&config, &objects);
    let resolved = go(&models, &head, "listed").unwrap();
    let named = (resolved.priority, resolved.fairness_id.as_deref());
    assert_eq!(named, (-3, Some("team")));
    assert_eq!(
        target(&models, &head, "listed"),
        "by-rule",
        "a client's word"
    );
    assert_eq!(go(&models, &head, "unlisted"), not_found("unlisted"));
    config.trusted_headers = TrustedHeaders {
        model_name_rewrite: true,
        ..TrustedHeaders::default()
    };
    let models = Models::merge(&config, &objects);
    let resolved = go(&models, &head, "unlisted").unwrap();
    assert_eq!(resolved.target.as_deref(), Some("forced"));
    assert_eq!((resolved.priority, resolved.fairness_id), (0, None));
}

/// Otherwise clients could put their own requests before all others.
#[test]
fn by_default_no_header_of_a_request_is_believed() {
    let head = mk_head(&[
        ("x-gateway-inference-objective", "critical"),
        ("x-gateway-inference-fairness-id", "new-each-time"),
        ("x-gateway-model-name-rewrite", "forced"),
    ]);
    let config = Config {
        objectives: [("critical".to_owned(), 9)].into(),
        ..Config::default()
    };
    let models = Models::merge(&config, &Objects::default());
    let resolved = go(&models, &head, "m").unwrap();
    assert_eq!((resolved.priority, resolved.fairness_id), (0, None));
    assert_eq!(resolved.target.as_deref(), Some("m"));
}
