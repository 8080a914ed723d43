//! Which model a request is for: what clients may ask for, what servers get, and how much it matters (pure).

use std::sync::Arc;

use rand::{Rng, RngExt};

use crate::{
    body::Parsed,
    config::{Config, RewriteRule},
    extproc::RequestHead,
    reject::Reject,
};

/// Whether models that nobody lists are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ModelMatch {
    /// Where a list of models is configured.
    #[default]
    Auto,
    /// Always, as the protocol's text has it.
    Strict,
    /// Never.
    Off,
}

/// What is known of a request beside where it may go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// The model the client asks for; absent: its body was not read.
    pub(crate) model: Option<Arc<str>>,
    /// The model the server gets.
    pub(crate) target: Option<Arc<str>>,
    /// The higher, the more it matters; below 0 it is shed first.
    pub(crate) priority: i32,
    /// Whose share of the pool it is.
    pub(crate) fairness_id: Option<Arc<str>>,
}

/// Names of an objective's header.
const OBJECTIVE: [&str; 2] = [
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
];
const FAIRNESS_ID: [&str; 2] = [
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
];
const MODEL_REWRITE: [&str; 2] = ["x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"];

/// Finds out what a request is for. `is_inference`: its path is one whose bodies are read. `is_cut`: only a part of the
/// body was seen.
///
/// # Errors
/// [`Reject::ModelNotFound`] where the model is none of those that clients may ask for, [`Reject::ModelNotSeen`] where it
/// matters and stands in the part of the body that was not seen.
pub(crate) fn resolve<R: Rng + ?Sized>(
    config: &Config,
    matching: ModelMatch,
    head: &RequestHead,
    is_inference: bool,
    is_cut: bool,
    parsed: Option<&Parsed>,
    rng: &mut R,
) -> Result<Resolved, Reject> {
    let asked = parsed.map(|parsed| parsed.model.as_str());
    let enforced = match matching {
        ModelMatch::Auto => !config.models.is_empty() && is_inference && !head.end,
        ModelMatch::Strict => is_inference || !head.end,
        ModelMatch::Off => false,
    };
    let trusted = config.trusted_headers;
    let forced = head
        .field(&MODEL_REWRITE)
        .filter(|_| trusted.model_name_rewrite);
    if is_cut && (enforced || !config.rewrites.is_empty()) {
        return Err(Reject::ModelNotSeen);
    }
    let known = asked.is_some_and(|model| config.models.contains(model));
    if enforced && !known && forced.is_none() {
        return Err(Reject::ModelNotFound(asked.map(str::to_owned)));
    }
    let target = asked.map(|asked| match forced {
        Some(forced) => forced,
        None => rewrite(&config.rewrites, asked, rng).unwrap_or(asked),
    });
    let objective = head.field(&OBJECTIVE).filter(|_| trusted.objective);
    let priority = objective.and_then(|name| config.objectives.get(name));
    let fairness_id = head.field(&FAIRNESS_ID).filter(|_| trusted.fairness);
    Ok(Resolved {
        model: asked.map(Into::into),
        target: target.map(Into::into),
        priority: priority.copied().unwrap_or(0),
        fairness_id: fairness_id.map(Into::into),
    })
}

/// The target of the first rule for this very model, else of the first rule for all.
fn rewrite<'a, R: Rng + ?Sized>(
    rules: &'a [RewriteRule],
    model: &str,
    rng: &mut R,
) -> Option<&'a str> {
    let exact = rules.iter().find(|rule| rule.models.contains(model));
    let rule = exact.or_else(|| rules.iter().find(|rule| rule.models.is_empty()))?;
    let total: u64 = rule.targets.iter().map(|one| u64::from(one.weight)).sum();
    let mut at = if total > 0 {
        rng.random_range(0..total)
    } else {
        0
    };
    let chosen = rule.targets.iter().find(|one| {
        let weight = u64::from(one.weight);
        let is_here = at < weight;
        at = at.saturating_sub(weight);
        is_here
    })?;
    Some(&chosen.model)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rand::{SeedableRng, rngs::StdRng};
    use rstest::rstest;

    use super::*;
    use crate::{body::Api, config::RewriteTarget};

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

    fn go(config: &Config, head: &RequestHead, model: &str) -> Result<Resolved, Reject> {
        let parsed = mk_parsed(model);
        let mut rng = StdRng::seed_from_u64(1);
        resolve(
            config,
            ModelMatch::Auto,
            head,
            true,
            false,
            Some(&parsed),
            &mut rng,
        )
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
        #[case] models: &[&str],
        #[case] matching: ModelMatch,
        #[case] model: Option<&str>,
        #[case] is_inference: bool,
        #[case] found: bool,
    ) {
        let config = Config {
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            ..Config::default()
        };
        let parsed = model.map(mk_parsed);
        let got = resolve(
            &config,
            matching,
            &RequestHead::default(),
            is_inference,
            false,
            parsed.as_ref(),
            &mut StdRng::seed_from_u64(1),
        );
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
        let go = |config: &Config| {
            let head = RequestHead::default();
            let rng = &mut StdRng::seed_from_u64(1);
            resolve(config, ModelMatch::Auto, &head, true, true, None, rng)
        };
        assert!(go(&Config::default()).is_ok());
        let listed = Config {
            models: ["m".to_owned()].into(),
            ..Config::default()
        };
        let rewritten = Config {
            rewrites: vec![mk_rule(&[], &[("n", 1)])],
            ..Config::default()
        };
        for config in [listed, rewritten] {
            assert_eq!(go(&config), Err(Reject::ModelNotSeen));
        }
    }

    /// A browser's preflight has no model.
    #[test]
    fn a_request_without_a_body_is_no_question_of_models() {
        let config = Config {
            models: ["m".to_owned()].into(),
            ..Config::default()
        };
        let head = RequestHead {
            end: true,
            ..RequestHead::default()
        };
        let rng = &mut StdRng::seed_from_u64(1);
        assert!(resolve(&config, ModelMatch::Auto, &head, true, false, None, rng).is_ok());
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
        for (model, target) in [("m", "first"), ("n", "second"), ("o", "all")] {
            let resolved = go(&config, &RequestHead::default(), model).unwrap();
            assert_eq!(resolved.target.as_deref(), Some(target), "{model}");
            assert_eq!(resolved.model.as_deref(), Some(model));
        }
    }

    #[test]
    fn targets_are_chosen_by_their_weights() {
        let rules = [mk_rule(&[], &[("a", 1), ("none", 0), ("b", 3)])];
        let mut rng = StdRng::seed_from_u64(7);
        let mut count = |name| {
            let chosen = (0..4_000).filter(|_| rewrite(&rules, "m", &mut rng) == Some(name));
            chosen.count()
        };
        assert!((850..1_150).contains(&count("a")));
        assert!((2_850..3_150).contains(&count("b")));
        assert_eq!(count("none"), 0);
    }

    #[rstest]
    #[case::empty(&[("x-llm-d-inference-fairness-id", "")], None)]
    #[case::the_alias_beside_it(
        &[("x-llm-d-inference-fairness-id", ""), ("x-gateway-inference-fairness-id", "team")], Some("team"))]
    fn an_empty_fairness_header_names_no_flow(
        #[case] fields: &[(&str, &str)],
        #[case] flow: Option<&str>,
    ) {
        let resolved = go(&Config::default(), &mk_head(fields), "m").unwrap();
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
            models: ["listed".to_owned()].into(),
            ..Config::default()
        };
        let resolved = go(&config, &head, "listed").unwrap();
        let named = (resolved.priority, resolved.fairness_id.as_deref());
        assert_eq!(named, (-3, Some("team")));
        assert_eq!(
            resolved.target.as_deref(),
            Some("listed"),
            "it bypasses the list"
        );
        config.trusted_headers.model_name_rewrite = true;
        config.trusted_headers.objective = false;
        config.trusted_headers.fairness = false;
        let resolved = go(&config, &head, "unlisted").unwrap();
        assert_eq!(resolved.target.as_deref(), Some("forced"));
        assert_eq!((resolved.priority, resolved.fairness_id), (0, None));
    }
}
