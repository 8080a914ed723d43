//! The file as a whole.

use foreign_text::{Limits, Node};
use scheduling::{Filter, Picker, Profile, WeightedScorer};

use super::{
    Compat, Config, Parsers, Session, data,
    findings::{Findings, Ignored, Refusals},
    flow, isthmus,
    plugins::{Declared, Plugin, Plugins},
    section::{Bounds, Section, Value},
};

/// The limits of a configuration file: the size of a ConfigMap, and eight times as much once aliases are expanded.
pub(super) const LIMITS: Limits = Limits {
    text: 1 << 20,
    expanded: 8 << 20,
    values: 1 << 18,
};

const KIND: &str = "EndpointPickerConfig";
const API_VERSIONS: [&str; 2] = [
    "llm-d.ai/v1alpha1",
    "inference.networking.x-k8s.io/v1alpha1",
];

/// The gate that this EPP has.
const FLOW_CONTROL: &str = "flowControl";

/// Weight of a scorer that has none in the file.
const WEIGHT: f64 = 1.0;

/// Parts of a profile.
#[derive(Debug, Default)]
struct Parts {
    filters: Vec<Filter>,
    scorers: Vec<WeightedScorer>,
    picker: Option<(String, Picker)>,
    session: Option<(String, Session)>,
}

/// Reads a file.
///
/// # Errors
/// [`Refusals`] that name all that cannot be used.
pub(super) fn read(text: &str, compat: Compat) -> Result<Config, Refusals> {
    let (config, ignored) = read_document(text, compat, EXAMPLE, read_root)?;
    Ok(Config { ignored, ..config })
}

/// Reads a file by `read`, and names all that cannot be used by its line; also what is ignored.
pub(crate) fn read_document<T: Default>(
    text: &str,
    compat: Compat,
    example: &str,
    read: impl for<'a> FnOnce(Section<'a>, &'a Findings) -> T,
) -> Result<(T, Vec<Ignored>), Refusals> {
    let findings = Findings::new(compat);
    let document = match Node::parse(text, LIMITS) {
        Ok(node) => {
            let root = Value::root(node, &findings).section();
            root.map(|root| read(root, &findings))
        }
        Err(problem) => {
            findings.refuse("the file", problem.to_string(), "YAML or JSON", example);
            None
        }
    };
    let ignored = findings
        .into_result()
        .map_err(|refusals| refusals.located_in(text))?;
    // without a document something was refused
    Ok((document.unwrap_or_default(), ignored))
}

const EXAMPLE: &str = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig}";

fn read_root<'a>(mut root: Section<'a>, findings: &'a Findings) -> Config {
    let mut config = Config::default();
    let api_version = root.required_text("apiVersion", "llm-d.ai/v1alpha1");
    if !api_version.is_empty() && !API_VERSIONS.contains(&api_version.as_str()) {
        let (problem, expected) = (
            format!("it is {api_version:?}"),
            format!("one of {}", API_VERSIONS.join(", ")),
        );
        findings.refuse("apiVersion", problem, expected, API_VERSIONS[0]);
    }
    let kind = root.required_text("kind", KIND);
    if !kind.is_empty() && kind != KIND {
        findings.refuse("kind", format!("it is {kind:?}"), KIND, KIND);
    }
    let flow_control = read_gates(&mut root, findings);
    let plugins = Plugins::read(root.list("plugins"), findings);
    config.profile = read_profiles(&mut root, &plugins, &mut config.session);
    let (flow_control, detector) = flow::read(&mut root, &plugins, flow_control);
    (config.flow_control, config.detector) = (flow_control, detector);
    data::read(&mut root, &plugins, &mut config);
    read_parsers(&mut root, &plugins, &mut config);
    let prefix = plugins.only(|plugin| match plugin {
        Plugin::PrefixProducer(prefix) => Some(*prefix),
        _ => None,
    });
    config.prefix = prefix.unwrap_or_default();
    isthmus::read(&mut root, &mut config);
    root.finish();
    plugins.report_unused();
    config
}

/// Whether flow control is on.
fn read_gates(root: &mut Section<'_>, findings: &Findings) -> bool {
    let mut flow_control = false;
    for gate in root.list("featureGates") {
        let item = gate.item().to_owned();
        let Some(text) = gate.text(FLOW_CONTROL) else {
            continue;
        };
        let (name, on) = match text.split_once('=') {
            None => (text.as_str(), true),
            Some((name, "true")) => (name, true),
            Some((name, "false")) => (name, false),
            Some((_, value)) => {
                let problem = format!("its value is {value:?}");
                findings.refuse(item, problem, "true or false", "flowControl=true");
                continue;
            }
        };
        if name == FLOW_CONTROL {
            flow_control = on;
        } else {
            findings.ignore(item, format!("this EPP has no gate {name:?}"));
        }
    }
    flow_control
}

fn read_profiles<'a>(
    root: &mut Section<'a>,
    plugins: &Plugins<'a>,
    session: &mut Option<Session>,
) -> Profile {
    let mut profiles = root.list("schedulingProfiles").into_iter();
    let parts = match profiles.next().and_then(Value::section) {
        Some(profile) => read_profile(profile, plugins),
        None => implicit_profile(root.findings(), plugins),
    };
    for profile in profiles {
        profile.refuse(
            "it is one profile too many",
            "one profile: no handler of several is supported",
            "schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]",
        );
    }
    let declared_max_score = || {
        plugins.all().find_map(|declared| match declared.plugin {
            Plugin::Picker(picker) if picker.kind == Picker::default().kind => {
                Plugins::mark_used(declared);
                Some(picker)
            }
            _ => None,
        })
    };
    *session = parts.session.map(|(_, session)| session);
    Profile {
        filters: parts.filters,
        scorers: parts.scorers,
        picker: match parts.picker {
            Some((_, picker)) => picker,
            None => declared_max_score().unwrap_or_default(),
        },
        ..Profile::default()
    }
}

fn read_profile<'a>(mut profile: Section<'a>, plugins: &Plugins<'a>) -> Parts {
    let mut parts = Parts::default();
    profile.required_text("name", "default");
    for value in profile.list("plugins") {
        let Some(mut section) = value.section() else {
            continue;
        };
        let reference = section.value("pluginRef");
        let weight = section.value("weight");
        let Some(reference) = reference else {
            section.required_text("pluginRef", "queue-scorer");
            continue;
        };
        section.finish();
        let Some(declared) = plugins.named(&reference) else {
            plugins.refuse_missing(&reference, Plugin::is_schedulable);
            continue;
        };
        let is_scorer = matches!(
            declared.plugin,
            Plugin::Scorer(_) | Plugin::SessionScorer(_)
        );
        let weight = weight.and_then(|weight| {
            if !is_scorer && declared.plugin != Plugin::Nothing {
                let item = weight.item().to_owned();
                profile
                    .findings()
                    .ignore(item, "only scorers have a weight");
            }
            weight.number(Bounds::WEIGHT, WEIGHT)
        });
        if !declared.plugin.is_schedulable() && declared.plugin != Plugin::Nothing {
            let expected = "a filter, scorer or picker";
            let schedulable = |plugin: &Plugin| plugin.is_schedulable().then_some(());
            plugins.refuse_kind(&reference, &declared.plugin, expected, schedulable);
            continue;
        }
        let weight = weight.unwrap_or(WEIGHT);
        parts.add(declared, weight, reference.item(), profile.findings());
    }
    profile.finish();
    parts
}

/// Of every filter, scorer and picker, in the order of the file.
fn implicit_profile(findings: &Findings, plugins: &Plugins<'_>) -> Parts {
    let mut parts = Parts::default();
    for declared in plugins.all() {
        if declared.plugin.is_schedulable() {
            Plugins::mark_used(declared);
            parts.add(declared, WEIGHT, &declared.item, findings);
        }
    }
    parts
}

fn read_parsers<'a>(root: &mut Section<'a>, plugins: &Plugins<'a>, config: &mut Config) {
    let mut handler = root.section("requestHandler");
    let mut references = handler.list("parsers");
    handler.finish();
    // the former place of a single one
    let former = root.value("parser");
    if references.is_empty() {
        references.extend(former);
    } else if let Some(former) = former {
        let why = "requestHandler.parsers takes its place";
        root.findings().ignore(former.item(), why);
    }
    if references.is_empty() {
        return;
    }
    config.parsers = Parsers::NONE;
    for value in references {
        let Some(mut section) = value.section() else {
            continue;
        };
        let Some(reference) = section.value("pluginRef") else {
            section.required_text("pluginRef", "openai-parser");
            continue;
        };
        section.finish();
        let parser = plugins.resolve(reference, "a parser", |plugin| match plugin {
            Plugin::Parser(parser) => Some(*parser),
            _ => None,
        });
        if let Some(parser) = parser {
            config.parsers.add(parser);
        }
    }
}

// === impl Parts ===

impl Parts {
    fn add(&mut self, declared: &Declared, weight: f64, item: &str, findings: &Findings) {
        match &declared.plugin {
            Plugin::Scorer(scorer) => {
                let scorer = scorer.clone();
                self.scorers.push(WeightedScorer { scorer, weight });
            }
            Plugin::SessionScorer(session) => {
                let scorer = scheduling::Scorer::SessionAffinity(session.strategy);
                self.scorers.push(WeightedScorer { scorer, weight });
                self.add_session(session, item, findings);
            }
            Plugin::Filter(filter) => self.filters.push(filter.clone()),
            Plugin::SessionFilter(session) => {
                self.filters.push(Filter::SessionAffinity);
                self.add_session(session, item, findings);
            }
            Plugin::Detector(detector) => self.filters.push(Filter::Saturation(*detector)),
            Plugin::Picker(picker) => match &self.picker {
                None => self.picker = Some((item.to_owned(), *picker)),
                Some((first, _)) => findings.refuse(
                    item,
                    format!("it is a second picker beside {first}"),
                    "one picker in a profile",
                    "pluginRef: max-score-picker",
                ),
            },
            _ => {}
        }
    }

    /// There is one memory of sessions.
    fn add_session(&mut self, session: &Session, item: &str, findings: &Findings) {
        match &self.session {
            None => self.session = Some((item.to_owned(), session.clone())),
            Some((_, first)) if first == session => {}
            Some((first, _)) => findings.refuse(
                item,
                format!("its parameters differ from those of {first}"),
                "the same parameters for session affinity in a profile",
                "strategy: session_id",
            ),
        }
    }
}
