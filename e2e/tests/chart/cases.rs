//! The sets of values in the charts' `tests`, and the manifests that they become.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::Deserialize as _;
use serde_json::Value;

use crate::helm::{CHARTS, Chart, Helm};

/// `NAME.values.yaml`, and beside it `NAME.golden.yaml`.
pub(crate) struct Case {
    pub(crate) chart: Chart,
    /// With the chart's.
    pub(crate) name: String,
    pub(crate) values: PathBuf,
}

// === impl Case ===

impl Case {
    pub(crate) fn golden(&self) -> PathBuf {
        let file = self.values.to_string_lossy();
        PathBuf::from(file.replace(".values.yaml", ".golden.yaml"))
    }

    pub(crate) fn render(&self, helm: &Helm) -> Result<String> {
        let values = self.values.to_string_lossy();
        let rendered = helm.template(self.chart, &["--values", &*values]);
        rendered.with_context(|| self.name.clone())
    }

    /// What is kept of it: a dashboard is in the chart already, as it is rendered.
    pub(crate) fn render_without_dashboards(&self, helm: &Helm) -> Result<String> {
        let mut rendered = self.render(helm)?;
        let directory = self.chart.path().join("dashboards");
        if !directory.is_dir() {
            return Ok(rendered);
        }
        for file in std::fs::read_dir(directory)? {
            let path = file?.path();
            let text = std::fs::read_to_string(&path)?;
            let lines = text.trim_end().lines().map(|line| format!("    {line}"));
            let block = lines.collect::<Vec<_>>().join("\n");
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            rendered = rendered.replace(&block, &format!("    as in dashboards/{name}"));
        }
        Ok(rendered)
    }

    pub(crate) fn objects(&self, helm: &Helm) -> Result<Vec<Value>> {
        documents(&self.render(helm)?).with_context(|| self.name.clone())
    }
}

/// Those of all charts.
pub(crate) fn all() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for chart in CHARTS {
        cases.extend(of(chart)?);
    }
    Ok(cases)
}

/// Those of one, by name.
fn of(chart: Chart) -> Result<Vec<Case>> {
    let directory = chart.path().join("tests");
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(&directory)? {
        let values = entry?.path();
        let file = values.file_name().unwrap_or_default().to_string_lossy();
        if let Some(name) = file.strip_suffix(".values.yaml") {
            cases.push(Case {
                chart,
                name: format!("{}/{name}", chart.name),
                values: values.clone(),
            });
        }
    }
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    ensure!(!cases.is_empty(), "no values in {}", directory.display());
    Ok(cases)
}

/// The objects of a text with several documents.
pub(crate) fn documents(yaml: &str) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for document in serde_yaml::Deserializer::from_str(yaml) {
        let value = Value::deserialize(document)?;
        if !value.is_null() {
            objects.push(value);
        }
    }
    Ok(objects)
}

/// Kind and name.
pub(crate) fn called(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!(
        "{} {}",
        text(&object["kind"]),
        text(&object["metadata"]["name"])
    )
}

/// The containers of an object's pods.
pub(crate) fn containers(object: &Value) -> impl Iterator<Item = &Value> {
    object["spec"]["template"]["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten()
}
