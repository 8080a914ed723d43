//! What the charts make of values that work.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    cases::{self, called, containers},
    helm::{CHARTS, Helm, POOL},
};

const AGAIN: &str = "UPDATE_DOCS=1 cargo test -p e2e --test chart -- renders::";

pub(crate) fn helm_has_nothing_to_complain_of(helm: &Helm) -> Result<()> {
    for case in cases::all()? {
        let values = case.values.to_string_lossy();
        let chart = case.chart.path();
        let chart = chart.to_string_lossy();
        let output = helm.try_offline(&["lint", "--strict", &*chart, "--values", &*values])?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{}: {said}", case.name);
    }
    Ok(())
}

pub(crate) fn each_case_renders_as_it_is_kept(helm: &Helm) -> Result<()> {
    let mut problems = Vec::new();
    for case in cases::all()? {
        let (rendered, golden) = (case.render_without_dashboards(helm)?, case.golden());
        let kept = std::fs::read_to_string(&golden).unwrap_or_default();
        if rendered == kept {
            continue;
        }
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&golden, rendered)?;
            continue;
        }
        let mut lines = rendered.lines().zip(kept.lines()).enumerate();
        let first = lines.find(|(_, (made, kept))| made != kept).map_or_else(
            || "one of them is longer".to_owned(),
            |(nth, (made, kept))| format!("line {}:\n  kept {kept}\n  made {made}", nth + 1),
        );
        problems.push(format!("{}: {first}", case.name));
    }
    ensure!(problems.is_empty(), "run {AGAIN}\n{}", problems.join("\n"));
    Ok(())
}

/// A template that no case renders could render anything.
pub(crate) fn each_template_is_in_a_golden(_: &Helm) -> Result<()> {
    let mut goldens = String::new();
    for case in cases::all()? {
        goldens.push_str(&std::fs::read_to_string(case.golden())?);
    }
    let mut missing = Vec::new();
    for chart in CHARTS {
        for template in std::fs::read_dir(chart.path().join("templates"))? {
            let file = template?.file_name();
            // the others are parts of them, and notes
            let is_manifest = Path::new(&file).extension() == Some("yaml".as_ref());
            let path = format!("{}/templates/{}", chart.name, file.to_string_lossy());
            if is_manifest && !goldens.contains(&format!("\n# Source: {path}\n")) {
                missing.push(path);
            }
        }
    }
    ensure!(
        missing.is_empty(),
        "in no golden of the charts' tests: {missing:?}"
    );
    Ok(())
}

/// What Pod Security admission does not ask for at its strictest level, and what every pod has.
pub(crate) fn each_pod_is_confined(helm: &Helm) -> Result<()> {
    // who calls the API server
    const WITH_TOKEN: [&str; 4] = [
        "isthmus-gateway",
        "isthmus-mci-controller",
        "pool-epp",
        "pool-router",
    ];
    // resources that clients or tenants could make grow without limit
    const LIMITED: [&str; 5] = [
        "isthmus-gateway",
        "isthmus-mci-controller",
        "pool-metadata-center",
        "pool-processor",
        "pool-router",
    ];
    for case in cases::all()? {
        for object in case.objects(helm)? {
            let pod = &object["spec"]["template"]["spec"];
            if pod.is_null() {
                continue;
            }
            let name = object["metadata"]["name"].as_str().context("a name")?;
            let at = format!("{}: {name}", case.name);
            let token = WITH_TOKEN.contains(&name);
            ensure!(pod["automountServiceAccountToken"] == token, "{at}");
            ensure!(pod["serviceAccountName"].is_string() == token, "{at}");
            ensure!(pod["enableServiceLinks"] == false, "{at}");
            let user = pod["securityContext"]["runAsUser"].as_u64();
            ensure!(user.is_some_and(|user| user > 0), "{at}: {user:?}");
            for container in containers(&object) {
                let security = &container["securityContext"];
                ensure!(
                    security["readOnlyRootFilesystem"] == true,
                    "{at}: {security}"
                );
                ensure!(
                    security["capabilities"] == json!({"drop": ["ALL"]}),
                    "{at}: {security}"
                );
                ensure!(
                    container["resources"]["requests"].is_object(),
                    "{at}: no requests"
                );
                if LIMITED.contains(&name) {
                    let memory = |of: &str| mebibytes(&container["resources"][of]["memory"]);
                    let (request, limit) = (memory("requests"), memory("limits"));
                    let fits = request.is_some() && request <= limit;
                    ensure!(fits, "{at}: memory of {request:?} MiB, limit {limit:?} MiB");
                }
                ensure!(
                    container["imagePullPolicy"].is_string(),
                    "{at}: no pull policy"
                );
                ensure!(
                    container["readinessProbe"].is_object(),
                    "{at}: no readiness probe"
                );
                ensure!(
                    container["livenessProbe"].is_object(),
                    "{at}: no liveness probe"
                );
            }
        }
    }
    Ok(())
}

/// The MiB of a quantity such as `512Mi` or `2Gi`.
fn mebibytes(quantity: &Value) -> Option<u64> {
    let text = quantity.as_str()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(2)?)?;
    let unit = match unit {
        "Mi" => 1,
        "Gi" => 1024,
        _ => return None,
    };
    Some(number.parse::<u64>().ok()? * unit)
}

/// One value for each of them, and each is changed here.
pub(crate) fn a_number_that_is_shared_is_the_same_everywhere(helm: &Helm) -> Result<()> {
    let rendered = |kind: &str| {
        let kind = format!("worker.kind={kind}");
        let sets = [
            "image.hub=example.com/isthmus",
            &*kind,
            "worker.model=llama",
            "blockSize=64",
            "kvEvents.port=6557",
            "kvEvents.replayPort=6558",
            "tokenCache.ttlSeconds=777",
            "processor.enabled=true",
            "processor.models[0].name=llama",
            "processor.models[0].path=/models/llama",
            "router.enabled=true",
            "tokenCache.backend=redis",
            "tokenCache.url=redis://cache:6379",
        ];
        let sets: Vec<&str> = sets.iter().flat_map(|&set| ["--set", set]).collect();
        cases::documents(&helm.template(POOL, &sets)?)
    };
    let arguments = |objects: &[Value], name: &str| -> Result<Vec<String>> {
        let mut objects = objects.iter();
        let object = objects.find(|object| called(object) == format!("Deployment {name}"));
        let container = containers(object.context("no such Deployment")?).next();
        let container = container.context("no container")?;
        let env = container["env"].as_array().into_iter().flatten();
        let env = env.map(|one| format!("{}={}", one["name"], one["value"]).replace('"', ""));
        let args = container["args"].as_array().into_iter().flatten();
        let args = args.filter_map(Value::as_str).map(str::to_owned);
        Ok(args.chain(env).collect())
    };
    let sim = rendered("sim")?;
    let vllm = rendered("vllm")?;
    let cache = "TOKEN_CACHE_ENDPOINT=redis://cache:6379";
    let events = r#"{"enable_kv_cache_events":true,"endpoint":"tcp://*:6557","publisher":"zmq","replay_endpoint":"tcp://*:6558","topic":""}"#;
    for (objects, name, wanted) in [
        (
            &sim,
            "pool-worker",
            &[
                "--block-size=64",
                "--kv-events-port=6557",
                "--kv-replay-port=6558",
                cache,
            ][..],
        ),
        (
            &sim,
            "pool-router",
            &[
                "--block-size=64",
                "--kv-event-port=6557",
                "--kv-event-replay-port=6558",
            ],
        ),
        (&sim, "pool-processor", &["--token-ttl=777s", cache]),
        (&vllm, "pool-worker", &["--block-size=64", events]),
    ] {
        let found = arguments(objects, name)?;
        for wanted in wanted {
            ensure!(
                found.iter().any(|one| one == wanted),
                "{name} has no {wanted}: {found:?}"
            );
        }
    }
    let policies = sim
        .iter()
        .filter(|object| object["kind"] == "NetworkPolicy");
    let ports: Vec<&Value> = policies
        .filter(|policy| policy["metadata"]["name"] == "pool-worker")
        .flat_map(|policy| policy["spec"]["ingress"].as_array().into_iter().flatten())
        .flat_map(|rule| rule["ports"].as_array().into_iter().flatten())
        .map(|port| &port["port"])
        .collect();
    ensure!(
        ports == [&json!(8000), &json!(6557), &json!(6558)],
        "{ports:?}"
    );
    Ok(())
}
