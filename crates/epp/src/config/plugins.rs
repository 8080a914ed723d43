//! The plugins of a file, and references to them by name.

use std::cell::Cell;

use scheduling::{Detector, Filter, Picker, Scorer};

use super::{
    Parser, Prefix, Session,
    data::{Engines, FileDiscovery, MetricsSource},
    findings::{Findings, nearest},
    flow::{FairnessPolicy, OrderingPolicy},
    section::{Section, Value},
};

mod labels;
mod types;

#[cfg(test)]
pub(super) use types::type_names;
pub(super) use types::utilization_detector;
use types::{TYPES, Type};

/// What a plugin of a supported type is, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Plugin {
    Scorer(Scorer),
    SessionScorer(Session),
    Filter(Filter),
    SessionFilter(Session),
    Detector(Detector),
    Picker(Picker),
    /// Runs the one profile.
    Handler,
    PrefixProducer(Prefix),
    /// Requests in flight are always counted.
    LoadProducer,
    Source(MetricsSource),
    Extractor(Engines),
    Discovery(FileDiscovery),
    Parser(Parser),
    Fairness(FairnessPolicy),
    Ordering(OrderingPolicy),
    /// Has no effect.
    Nothing,
}

/// The plugins of a file.
#[derive(Debug)]
pub(super) struct Plugins<'a> {
    declared: Vec<Declared>,
    /// Names of producers in parameters, and the types they should have.
    producers: Vec<(Value<'a>, &'static str)>,
    findings: &'a Findings,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Declared {
    /// Its place, such as `plugins[3]`.
    pub(super) item: String,
    pub(super) name: String,
    pub(super) type_name: String,
    pub(super) plugin: Plugin,
    used: Cell<bool>,
}

// === impl Plugin ===

impl Plugin {
    /// For messages.
    fn kind(&self) -> &'static str {
        match self {
            Self::Scorer(_) | Self::SessionScorer(_) => "a scorer",
            Self::Filter(_) | Self::SessionFilter(_) => "a filter",
            Self::Detector(_) => "a saturation detector",
            Self::Picker(_) => "a picker",
            Self::Handler => "a profile handler",
            Self::PrefixProducer(_) | Self::LoadProducer => "a producer",
            Self::Source(_) => "a data source",
            Self::Extractor(_) => "an extractor",
            Self::Discovery(_) => "a discovery",
            Self::Parser(_) => "a parser",
            Self::Fairness(_) => "a fairness policy",
            Self::Ordering(_) => "an ordering policy",
            Self::Nothing => "without effect",
        }
    }

    /// Whether it can be part of a profile.
    pub(super) fn is_schedulable(&self) -> bool {
        matches!(
            self,
            Self::Scorer(_)
                | Self::SessionScorer(_)
                | Self::Filter(_)
                | Self::SessionFilter(_)
                | Self::Detector(_)
                | Self::Picker(_)
        )
    }
}

// === impl Plugins ===

impl<'a> Plugins<'a> {
    pub(super) fn read(list: Vec<Value<'a>>, findings: &'a Findings) -> Self {
        let mut plugins = Self {
            declared: Vec::new(),
            producers: Vec::new(),
            findings,
        };
        for value in list {
            if let Some(section) = value.section() {
                plugins.declare(section);
            }
        }
        plugins.check_producers();
        plugins
    }

    fn declare(&mut self, mut section: Section<'a>) {
        let item = section.item().to_owned();
        let type_name = section.required_text("type", "queue-scorer");
        let name = section.text("name", "my-scorer");
        let name = name.unwrap_or_else(|| type_name.clone());
        if type_name.is_empty() {
            return;
        }
        let plugin = if let Some(kind) = Type::named(&type_name) {
            let mut parameters = section.section("parameters");
            if let Some((field, producer)) = kind.producer {
                let named = parameters.value(field);
                self.producers.extend(named.map(|named| (named, producer)));
            }
            let plugin = (kind.read)(&mut parameters);
            if plugin == Plugin::Nothing {
                let why = "prompt tokens are estimated from the length of the prompt";
                self.findings.ignore(item.clone(), why);
            } else {
                parameters.finish();
            }
            plugin
        } else {
            // its parameters are as unknown as it is
            section.value("parameters");
            let place = section.place("type");
            let what = format!("the plugin type {type_name:?}");
            self.findings
                .unknown(place, &what, &type_name, &types::type_names());
            Plugin::Nothing
        };
        if self.declared.iter().any(|other| other.name == name) {
            self.findings.refuse(
                item,
                format!("a plugin before it is named {name:?} too"),
                "a name of its own",
                format!("name: {name}-2"),
            );
            return;
        }
        section.finish();
        self.declared.push(Declared {
            item,
            name,
            type_name,
            plugin,
            used: Cell::new(false),
        });
    }

    /// All, in the order of the file.
    pub(super) fn all(&self) -> impl Iterator<Item = &Declared> {
        self.declared.iter()
    }

    /// The one plugin that `pick` takes; a second one is refused.
    pub(super) fn only<T>(&self, pick: impl Fn(&Plugin) -> Option<T>) -> Option<T> {
        let mut found: Option<(&Declared, T)> = None;
        for declared in &self.declared {
            let Some(picked) = pick(&declared.plugin) else {
                continue;
            };
            declared.used.set(true);
            match &found {
                None => found = Some((declared, picked)),
                Some((first, _)) => self.findings.refuse(
                    &declared.item,
                    format!("{} is {} already", first.item, first.plugin.kind()),
                    "one plugin of this kind",
                    format!("type: {}", declared.type_name),
                ),
            }
        }
        found.map(|(_, picked)| picked)
    }

    /// The plugin that a reference names.
    pub(super) fn named(&self, reference: &Value<'a>) -> Option<&Declared> {
        let name = reference.peek_text().unwrap_or_default();
        let found = self.declared.iter().find(|declared| declared.name == name);
        if let Some(declared) = found {
            declared.used.set(true);
            if declared.plugin == Plugin::Nothing {
                let why = format!("it refers to {}, which has none", declared.item);
                self.findings.ignore(reference.item(), why);
            }
        }
        found
    }

    /// What a reference names, if `pick` takes it. A supported type may be named though no plugin has it: it then has its
    /// default parameters.
    pub(super) fn resolve<T>(
        &self,
        reference: Value<'a>,
        wanted: &str,
        pick: impl Fn(&Plugin) -> Option<T>,
    ) -> Option<T> {
        if let Some(declared) = self.named(&reference) {
            let picked = pick(&declared.plugin);
            if picked.is_none() && declared.plugin != Plugin::Nothing {
                self.refuse_kind(&reference, &declared.plugin, wanted, &pick);
            }
            return picked;
        }
        let name = reference.peek_text().unwrap_or_default();
        if let Some((plugin, true)) = Type::named(name).map(Type::default_plugin) {
            let picked = pick(&plugin);
            if picked.is_none() {
                self.refuse_kind(&reference, &plugin, wanted, &pick);
            }
            picked
        } else {
            self.refuse_missing(&reference, |plugin| pick(plugin).is_some());
            None
        }
    }

    /// Refuses a reference to a plugin that is there, and of another kind than `wanted`.
    pub(super) fn refuse_kind<T>(
        &self,
        reference: &Value<'a>,
        plugin: &Plugin,
        wanted: &str,
        pick: impl Fn(&Plugin) -> Option<T>,
    ) {
        let name = reference.peek_text().unwrap_or_default();
        reference.refuse(
            format!("plugin {name:?} is {}", plugin.kind()),
            wanted,
            &self.example(name, |plugin| pick(plugin).is_some()),
        );
    }

    /// Refuses a reference to a plugin that is not there.
    pub(super) fn refuse_missing(&self, reference: &Value<'a>, fits: impl Fn(&Plugin) -> bool) {
        let Some(name) = reference.peek_text() else {
            return reference.refuse(
                "it is no text",
                "the name of a plugin",
                "pluginRef: queue-scorer",
            );
        };
        reference.refuse(
            format!("there is no plugin {name:?}"),
            "the name of one in plugins",
            &self.example(name, fits),
        );
    }

    /// The nearest plugin that would fit, declared or not.
    fn example(&self, name: &str, fits: impl Fn(&Plugin) -> bool) -> String {
        let declared: Vec<&str> = self
            .declared
            .iter()
            .filter(|declared| fits(&declared.plugin))
            .map(|declared| declared.name.as_str())
            .collect();
        let types: Vec<&str> = TYPES
            .iter()
            .filter(|one| fits(&one.default_plugin().0))
            .map(|one| one.name)
            .collect();
        let nearest = nearest(name, &declared).or_else(|| nearest(name, &types));
        nearest.unwrap_or("queue-scorer").to_owned()
    }

    /// There is one producer of each kind, so that naming it has no effect; any other name is wrong.
    fn check_producers(&self) {
        for (named, producer) in &self.producers {
            let name = named.peek_text().unwrap_or_default();
            let is_one = |one: &&Declared| one.name == name && one.type_name == *producer;
            if name == *producer || self.declared.iter().any(|one| is_one(&one)) {
                let why = "there is one producer of each kind";
                self.findings.ignore(named.item(), why);
            } else {
                named.refuse(
                    format!("{name:?} is no producer of this kind"),
                    "the name of the producer",
                    producer,
                );
            }
        }
        for declared in &self.declared {
            if let Plugin::LoadProducer | Plugin::Handler = declared.plugin {
                declared.used.set(true);
            }
        }
    }

    /// A plugin is part of the one profile, though nothing refers to it.
    pub(super) fn mark_used(declared: &Declared) {
        declared.used.set(true);
    }

    /// Names the plugins that nothing refers to.
    pub(super) fn report_unused(&self) {
        let unused = self
            .declared
            .iter()
            .filter(|declared| !declared.used.get() && declared.plugin != Plugin::Nothing);
        for declared in unused {
            self.findings.ignore(
                &declared.item,
                format!("nothing refers to {}", declared.name),
            );
        }
    }
}
