//! Filters by the labels of pods.

use std::{collections::BTreeSet, sync::Arc};

use scheduling::{Expression, Filter, Operator, Selector};

use super::Plugin;
use crate::config::section::{Section, Value};

pub(super) fn label_selector_filter(parameters: &mut Section<'_>) -> Plugin {
    let labels = parameters.section("matchLabels").entries();
    let labels = labels.into_iter().filter_map(|(key, value)| {
        let value = value.text_or_empty("decode")?;
        Some((key.into(), value.into()))
    });
    let labels = labels.collect();
    let expressions = parameters.list("matchExpressions");
    Plugin::Filter(Filter::LabelSelector(Selector {
        labels,
        expressions: expressions.into_iter().filter_map(expression).collect(),
    }))
}

fn expression(value: Value<'_>) -> Option<Expression> {
    #[derive(Clone, Copy)]
    enum Word {
        In,
        NotIn,
        Exists,
        DoesNotExist,
    }
    let mut section = value.section()?;
    let key = section.required_text("key", "llm-d.ai/role");
    let has_operator = section.has("operator");
    let word = section.choice(
        "operator",
        &[
            ("In", Word::In),
            ("NotIn", Word::NotIn),
            ("Exists", Word::Exists),
            ("DoesNotExist", Word::DoesNotExist),
        ],
    );
    if !has_operator {
        section.required_text("operator", "In");
    }
    let values_place = section.place("values");
    let has_values = section.has("values");
    let values = texts(section.list("values"));
    let findings = section.findings();
    section.finish();
    let wants_values = matches!(word?, Word::In | Word::NotIn);
    if wants_values == values.is_empty() {
        let expected = if wants_values {
            "values with In and NotIn"
        } else {
            "no values with Exists and DoesNotExist"
        };
        let found = if has_values { "there" } else { "missing" };
        findings.refuse(
            values_place,
            format!("it is {found}"),
            expected,
            "{key: gpu, operator: In, values: [h100]}",
        );
        return None;
    }
    Some(Expression {
        key: key.into(),
        operator: match word? {
            Word::In => Operator::In(values),
            Word::NotIn => Operator::NotIn(values),
            Word::Exists => Operator::Exists,
            Word::DoesNotExist => Operator::DoesNotExist,
        },
    })
}

fn texts(list: Vec<Value<'_>>) -> BTreeSet<Arc<str>> {
    list.into_iter()
        .filter_map(|value| value.text_or_empty("h100"))
        .map(Arc::from)
        .collect()
}

pub(super) fn by_label(parameters: &mut Section<'_>) -> Plugin {
    let label = parameters.required_text("label", "llm-d.ai/role");
    let place = parameters.place("validValues");
    let valid_values = texts(parameters.list("validValues"));
    let allows_no_label = parameters.flag("allowsNoLabel", false);
    if valid_values.is_empty() && !allows_no_label {
        parameters.findings().refuse(
            place,
            "it has no value, so that no pod could pass",
            "a list of values, or allowsNoLabel: true",
            "validValues: [decode]",
        );
    }
    Plugin::Filter(Filter::ByLabel {
        label: label.into(),
        valid_values,
        allows_no_label,
    })
}
