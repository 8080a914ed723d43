//! Tables against a reading of the rules, one after another, as the documentation has them.

use proptest::{
    collection::{btree_map, btree_set, vec},
    option,
    prelude::*,
    sample::select,
};

use super::*;

/// Few, so that they meet.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
struct Case {
    config: Config,
    objects: Objects,
    matching: ModelMatch,
    model: String,
    objective: Option<String>,
    forced: Option<String>,
}

fn name() -> impl Strategy<Value = String> {
    select(&NAMES[..]).prop_map(str::to_owned)
}

/// One target, so that chance has no part in the answer.
fn objects() -> impl Strategy<Value = Objects> {
    let rewrite = (vec(name(), 0..3), "[o][0-9]").prop_map(|(models, target)| Rewrite {
        models,
        targets: mk_targets(&[(&target, 1)]),
    });
    let model = (name(), -1..=1, option::of(("[t][0-9]", 0_u32..2)));
    let model = model.prop_map(|(name, priority, target)| {
        let target = target.iter().map(|(name, weight)| (name.as_str(), *weight));
        mk_model(&name, priority, &target.collect::<Vec<_>>())
    });
    let objective = (name(), -9..9).prop_map(|(name, priority)| mk_objective(&name, priority));
    (vec(objective, 0..4), vec(rewrite, 0..4), vec(model, 0..4)).prop_map(
        |(objectives, rewrites, models)| Objects {
            objectives,
            rewrites,
            models,
        },
    )
}

fn config() -> impl Strategy<Value = Config> {
    let rule = (vec(name(), 0..3), "[f][0-9]").prop_map(|(models, target)| {
        let models: Vec<_> = models.iter().map(String::as_str).collect();
        mk_rule(&models, &[(&target, 1)])
    });
    let parts = (
        btree_set(name(), 0..2),
        btree_map(name(), -9..9, 0..3),
        vec(rule, 0..3),
        any::<bool>(),
        any::<bool>(),
    );
    parts.prop_map(|(models, objectives, rewrites, objective, rewrite)| {
        let mut config = Config {
            models,
            objectives,
            rewrites,
            ..Config::default()
        };
        config.trusted_headers.objective = objective;
        config.trusted_headers.model_name_rewrite = rewrite;
        config
    })
}

fn case() -> impl Strategy<Value = Case> {
    let matching = select(vec![ModelMatch::Auto, ModelMatch::Strict, ModelMatch::Off]);
    let headers = (option::of(name()), option::of("[h][0-9]"));
    (config(), objects(), matching, name(), headers).prop_map(
        |(config, objects, matching, model, (objective, forced))| Case {
            config,
            objects,
            matching,
            model,
            objective,
            forced,
        },
    )
}

/// Target and priority; `None`: refused as unknown.
fn expected(case: &Case) -> Option<(String, i32)> {
    let Case {
        config,
        objects,
        matching,
        model,
        objective,
        forced,
    } = case;
    let trusted = config.trusted_headers;
    let forced = forced.as_ref().filter(|_| trusted.model_name_rewrite);
    let object = objects.models.iter().find(|one| one.name == *model);
    let has_list = !objects.models.is_empty() || !config.models.is_empty();
    let enforced = match matching {
        ModelMatch::Auto => has_list,
        ModelMatch::Strict => true,
        ModelMatch::Off => false,
    };
    let listed = object.is_some() || config.models.contains(model);
    if enforced && !listed && forced.is_none() {
        return None;
    }
    let rules = objects.rewrites.iter();
    let rules = rules.map(|rule| (rule.models.clone(), rule.targets[0].model.clone()));
    let of_file = config.rewrites.iter().map(|rule| {
        let models = rule.models.iter().cloned().collect();
        (models, rule.targets[0].model.clone())
    });
    let rules: Vec<(Vec<String>, String)> = rules.chain(of_file).collect();
    let exact = rules.iter().find(|(models, _)| models.contains(model));
    let rule = exact.or_else(|| rules.iter().find(|(models, _)| models.is_empty()));
    let target = match (forced, rule, object.and_then(|one| one.targets.first())) {
        (Some(forced), _, _) => forced.clone(),
        (None, Some((_, target)), _) => target.clone(),
        (None, None, Some(target)) if target.weight > 0 => target.model.clone(),
        (None, None, Some(_)) if *matching != ModelMatch::Off => return None,
        (None, None, _) => model.clone(),
    };
    let named = objective.as_ref().filter(|_| trusted.objective);
    let priority = named.and_then(|name| {
        let object = objects.objectives.iter().find(|one| one.name == *name);
        let of_file = || config.objectives.get(name).copied();
        object.map(|one| one.priority).or_else(of_file)
    });
    let priority = priority.or_else(|| object.map(|one| one.priority));
    Some((target, priority.unwrap_or(0)))
}

proptest! {
    #[test]
    fn tables_answer_as_the_rules_one_by_one(case in case()) {
        let models = Models::merge(&case.config, &case.objects);
        let objective = case.objective.as_deref();
        let forced = case.forced.as_deref();
        let fields = [
            objective.map(|name| ("x-llm-d-inference-objective", name)),
            forced.map(|name| ("x-gateway-model-name-rewrite", name)),
        ];
        let fields: Vec<_> = fields.into_iter().flatten().collect();
        let got = go_by(&models, case.matching, &mk_head(&fields), &case.model);
        let got = match got {
            Ok(resolved) => Some((resolved.target.expect("a target").to_string(), resolved.priority)),
            Err(Reject::ModelNotFound(_)) => None,
            Err(other) => panic!("{other:?}"),
        };
        prop_assert_eq!(got, expected(&case));
    }
}
