//! Values that are missing: set to `null`, or not there yet in a release of an older chart that is upgraded with
//! `--reuse-values`. The charts render without them, or name them; a template never goes through a map that is not there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    cases,
    helm::{CHARTS, Chart, Helm},
};

/// Maps of a schema and their missing keys.
type Missing = BTreeMap<String, BTreeSet<String>>;

/// What templates and their functions write in the place of a value that is not there.
const BROKEN: [&str; 5] = ["nil>", "no value>", "%!s(", "=null", ": null"];

/// Each key of `values.yaml` that has a place of its own in the schema. helm names all that are missing in one run, so there is
/// one run for all keys of a depth.
pub(crate) fn each_value_that_is_null_is_named(helm: &Helm) -> Result<()> {
    for chart in CHARTS {
        let (values, schema) = read(chart)?;
        let mut depths: Vec<Missing> = Vec::new();
        fixed(&values, &schema, "", 0, &mut depths)?;
        ensure!(!depths.is_empty(), "{}: no keys", chart.name);
        for keys in depths {
            let paths = keys.iter().flat_map(|(at, names)| {
                names.iter().map(move |name| {
                    let path = format!("{at}/{name}");
                    format!("{}=null", path.trim_start_matches('/').replace('/', "."))
                })
            });
            let set = paths.collect::<Vec<_>>().join(",");
            let output = helm.try_template(chart, &["--set", &set])?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(!output.status.success(), "{}: rendered: {set}", chart.name);
            ensure!(missing(&said) == keys, "{}: {set}\n{said}", chart.name);
        }
    }
    Ok(())
}

/// Keys of maps whose fields are the user's or Kubernetes', such as `resources`: without all of them at once, everything that
/// is rendered is still whole.
pub(crate) fn what_is_null_in_a_free_map_is_left_out(helm: &Helm) -> Result<()> {
    for case in cases::all()? {
        let (values, schema) = read(case.chart)?;
        let mut paths = Vec::new();
        free(&values, &schema, "", &mut paths);
        let nulls: Vec<String> = paths.iter().map(|path| format!("{path}=null")).collect();
        let file = case.values.to_string_lossy();
        let nulls = nulls.join(",");
        let mut arguments = vec!["--values", &*file];
        if !nulls.is_empty() {
            arguments.extend(["--set", &nulls]);
        }
        let rendered = helm.template(case.chart, &arguments)?;
        is_whole(&rendered).with_context(|| format!("{}: {nulls}", case.name))?;
    }
    Ok(())
}

/// Fields within the lists that the cases set: a list replaces the chart's, so what is null there stands for nothing.
pub(crate) fn what_is_null_in_a_list_is_named(helm: &Helm) -> Result<()> {
    let mut seen = 0;
    for case in cases::all()? {
        let text = fs::read_to_string(&case.values)?;
        let values = cases::documents(&text)?.into_iter().next();
        let (_, schema) = read(case.chart)?;
        let mut fields = Vec::new();
        in_lists(
            &values.unwrap_or(Value::Null),
            &schema,
            &schema,
            "",
            &mut fields,
        );
        if fields.is_empty() {
            continue;
        }
        let nulls = fields
            .iter()
            .map(|field| format!("{}=null", set_path(field)));
        let nulls = nulls.collect::<Vec<_>>().join(",");
        let file = case.values.to_string_lossy();
        let output = helm.try_template(case.chart, &["--values", &*file, "--set", &nulls])?;
        let said = String::from_utf8_lossy(&output.stderr);
        for field in &fields {
            let named = format!("at '{field}': ");
            ensure!(said.contains(&named), "{}: {field}: {said}", case.name);
        }
        seen += fields.len();
    }
    ensure!(seen > 0, "no lists in the cases");
    Ok(())
}

/// Installs the chart with the default values of an older release alone.
pub(crate) fn the_values_of_older_charts_are_enough_or_what_they_lack_is_named(
    helm: &Helm,
) -> Result<()> {
    let older = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chart/older");
    let mut seen = 0;
    for case in cases::all()? {
        let directory = older.join(case.chart.name);
        if !directory.is_dir() {
            continue;
        }
        for file in fs::read_dir(directory)? {
            let file = file?.path();
            let aged = tempfile::tempdir()?;
            copy(&case.chart.path(), aged.path())?;
            fs::copy(&file, aged.path().join("values.yaml"))?;
            let output = helm.try_offline(&[
                "template",
                "pool",
                &*aged.path().to_string_lossy(),
                "--values",
                &*case.values.to_string_lossy(),
            ])?;
            let at = format!("{} with {}", case.name, file.display());
            if output.status.success() {
                is_whole(&String::from_utf8(output.stdout)?).context(at)?;
            } else {
                let said = String::from_utf8_lossy(&output.stderr);
                ensure!(!missing(&said).is_empty(), "{at}: {said}");
            }
            seen += 1;
        }
    }
    ensure!(seen > 0, "no values in {}", older.display());
    Ok(())
}

fn read(chart: Chart) -> Result<(Value, Value)> {
    let values = fs::read_to_string(chart.path().join("values.yaml"))?;
    let values = cases::documents(&values)?;
    let values = values.into_iter().next().context("no values")?;
    let schema = fs::read_to_string(chart.path().join("values.schema.json"))?;
    Ok((values, serde_json::from_str(&schema)?))
}

/// Adds the keys of maps whose fields the schema fixes, by depth.
fn fixed(
    values: &Value,
    schema: &Value,
    at: &str,
    depth: usize,
    found: &mut Vec<Missing>,
) -> Result<()> {
    let (Some(values), Some(fields)) = (values.as_object(), schema["properties"].as_object())
    else {
        return Ok(());
    };
    for (name, value) in values {
        ensure!(!value.is_null(), "{at}/{name} has no default");
        if found.len() <= depth {
            found.push(Missing::new());
        }
        let names = found[depth].entry(at.to_owned()).or_default();
        names.insert(name.clone());
        let field = fields.get(name).unwrap_or(&Value::Null);
        fixed(value, field, &format!("{at}/{name}"), depth + 1, found)?;
    }
    Ok(())
}

/// Adds the leaves of all other maps, as paths for `--set`.
fn free(values: &Value, schema: &Value, path: &str, found: &mut Vec<String>) {
    let Some(values) = values.as_object() else {
        return;
    };
    let fields = schema["properties"].as_object();
    for (name, value) in values {
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{}", name.replace('.', "\\."));
        match fields {
            Some(fields) => free(
                value,
                fields.get(name).unwrap_or(&Value::Null),
                &path,
                found,
            ),
            None if value.is_object() => free(value, &Value::Null, &path, found),
            None => found.push(path),
        }
    }
}

/// Adds the leaves within lists that have a place of their own in the schema, as JSON pointers.
fn in_lists(values: &Value, root: &Value, schema: &Value, at: &str, found: &mut Vec<String>) {
    let named = schema["$ref"].as_str();
    let named = named.and_then(|name| root.pointer(name.trim_start_matches('#')));
    let schema = named.unwrap_or(schema);
    match values {
        Value::Object(values) => {
            for (name, value) in values {
                let field = &schema["properties"][name];
                in_lists(value, root, field, &format!("{at}/{name}"), found);
            }
        }
        Value::Array(_) if schema["type"] == "array" => leaves(values, at, found),
        _ => {}
    }
}

fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                leaves(value, &format!("{at}/{}", name.replace('/', "~1")), found);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (nth, item) in items.iter().enumerate() {
                leaves(item, &format!("{at}/{nth}"), found);
            }
        }
        _ => found.push(at.to_owned()),
    }
}

/// A JSON pointer as a path for `--set`.
fn set_path(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').skip(1) {
        if part.parse::<usize>().is_ok() {
            path.extend(["[", part, "]"]);
        } else {
            let dot = if path.is_empty() { "" } else { "." };
            let name = part.replace("~1", "/").replace('.', "\\.");
            path.extend([dot, &name]);
        }
    }
    path
}

/// The keys that helm reports as missing: `- at '/monitoring': missing properties 'a', 'b'`.
fn missing(said: &str) -> Missing {
    let mut all = Missing::new();
    for line in said.lines() {
        let Some(line) = line.trim().strip_prefix("- at '") else {
            continue;
        };
        let Some((at, rest)) = line.split_once("': missing propert") else {
            continue;
        };
        // each name is between two quotes
        let names = rest.split('\'').skip(1).step_by(2).map(str::to_owned);
        all.entry(at.to_owned()).or_default().extend(names);
    }
    all
}

/// Nothing in it is written in the place of a value that is not there. Dashboards are Grafana's, whose JSON has nulls.
fn is_whole(rendered: &str) -> Result<()> {
    let documents = rendered.split("\n---\n");
    let ours = documents.filter(|document| !document.contains("/templates/dashboards.yaml\n"));
    for line in ours.flat_map(str::lines) {
        let broken = BROKEN.iter().find(|broken| line.contains(**broken));
        ensure!(broken.is_none(), "{line}");
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
