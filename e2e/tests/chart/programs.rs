//! What the chart starts programs with, shown to the programs themselves.

use std::{collections::BTreeSet, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    cases::{self, containers},
    helm::{Helm, workspace},
};

/// Of the pod, for whoever asks; and of OpenTelemetry's library.
const OTHERS: [&str; 3] = ["POD_NAME", "POD_NAMESPACE", "OTEL_"];
const HUB: &str = "isthmus/";

/// A program with `--help` behind all its arguments reads these first, and says which variables it has.
pub(crate) fn each_flag_and_variable_is_known_to_its_program(helm: &Helm) -> Result<()> {
    let directory = std::env::var_os("ISTHMUS_BIN_DIR")
        .map_or_else(|| workspace().join("target/debug"), PathBuf::from);
    let mut seen = BTreeSet::new();
    for case in cases::all()? {
        for object in case.objects(helm)? {
            for container in containers(&object) {
                let image = container["image"].as_str().context("an image")?;
                let Some((_, program)) = image.split_once(HUB) else {
                    continue;
                };
                let program = program.split([':', '@']).next().unwrap_or_default();
                let at = format!("{}: {program}", case.name);
                let arguments = container["args"].as_array().into_iter().flatten();
                let output = Command::new(directory.join(program))
                    .args(arguments.filter_map(Value::as_str))
                    .arg("--help")
                    .env_clear()
                    .output()
                    .with_context(|| {
                        format!("{at}: {} is not built", directory.join(program).display())
                    })?;
                let error = String::from_utf8_lossy(&output.stderr);
                ensure!(output.status.success(), "{at}: {error}");
                let help = String::from_utf8_lossy(&output.stdout);
                for variable in container["env"].as_array().into_iter().flatten() {
                    let name = variable["name"].as_str().context("a variable")?;
                    // what may be a secret is not shown
                    let known = help.contains(&format!("[env: {name}="))
                        || help.contains(&format!("[env: {name}]"));
                    let other = OTHERS.iter().any(|other| name.starts_with(other));
                    ensure!(known || other, "{at} has no variable {name}");
                }
                seen.insert(program.to_owned());
            }
        }
    }
    let wanted = [
        "epp",
        "gateway",
        "mci-controller",
        "metadata-center",
        "model-server-sim",
        "processor",
        "router",
    ];
    ensure!(seen.iter().eq(wanted), "only {seen:?} are in the cases");
    Ok(())
}
