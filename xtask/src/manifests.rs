//! `cargo xtask manifests`: the manifests of `config/`, rendered from the charts.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{command::output, tools, workspace};

/// What the renders are for, whatever the newest Kubernetes is that helm knows.
const KUBERNETES: &str = "1.34.2";

/// Renders the manifests of `config/` from the charts
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write nothing: fail if one of them is not as its chart has it
    #[arg(long)]
    check: bool,
}

/// A file, and the release that it is made of.
struct Manifest {
    file: &'static str,
    /// What it begins with: whoever applies it has no chart's README beside it.
    head: &'static str,
    chart: &'static str,
    release: &'static str,
    namespace: &'static str,
    values: &'static [&'static str],
    /// Of these templates alone; none: of all.
    templates: &'static [&'static str],
}

/// Without the objects that only a part of the clusters wants.
const PLAIN: &str = "networkPolicy.enabled=false,podDisruptionBudget.enabled=false";
/// The images that users of a manifest replace by their own.
const IMAGES: &str =
    "controller.image.registry=registry.example.com,gateway.image.registry=registry.example.com";
const SYSTEM: &str = "isthmus-system";
const CONTROLLER_ALONE: &str = "controller.enabled=true,gateway.enabled=false,member.enabled=false";

const MANIFESTS: [Manifest; 5] = [
    Manifest {
        file: "config/controller.yaml",
        head: "\
# The ClusterSet controller, in its management cluster or in one of the members.
#
# Before this: apply config/rbac/home.yaml here; apply config/rbac/member.yaml and the CRD of InferencePoolImport
# (config/crd) in every member; and put one kubeconfig per member into the Secret isthmus-members, named <member>.yaml:
#   kubectl -n isthmus-system create secret generic isthmus-members \\
#     --from-file=east.yaml=east.kubeconfig --from-literal=.east.pod-cidrs=10.1.0.0/16 \\
#     --from-file=west.yaml=west.kubeconfig --from-literal=.west.pod-cidrs=10.2.0.0/16
# Other clusters send requests of a member's pools to these networks alone.
# Put your registry, which the images were pushed to, in the place of registry.example.com.
# A kubeconfig must hold its credentials as data (the token of the ServiceAccount of config/rbac/member.yaml): exec
# plugins, file paths, insecure-skip-tls-verify and http:// are refused.
",
        chart: "isthmus",
        release: "isthmus",
        namespace: SYSTEM,
        values: &[CONTROLLER_ALONE, "controller.membersSecret=isthmus-members", IMAGES, PLAIN],
        templates: &["controller-account.yaml", "controller.yaml"],
    },
    Manifest {
        file: "config/gateway.yaml",
        head: "\
# The importing gateway: GatewayClass, its program and what that may do.
# Put your registry, which the images were pushed to, in the place of registry.example.com.
# CLUSTER_NAME is the cluster's name in the ClusterSet; to set it, and all else, render the chart: docs/installation.md.
",
        chart: "isthmus",
        release: "isthmus",
        namespace: SYSTEM,
        values: &["member.enabled=false", IMAGES, PLAIN],
        templates: &[],
    },
    Manifest {
        file: "config/rbac/home.yaml",
        head: "\
# What the ClusterSet controller may do in the cluster that it runs in, or that --home-kubeconfig leads to. For another
# --clusterset than \"default\", render the chart with controller.clusterset.
",
        chart: "isthmus",
        release: "isthmus",
        namespace: SYSTEM,
        values: &[CONTROLLER_ALONE, IMAGES, PLAIN],
        templates: &["controller-account.yaml", "controller-rbac.yaml"],
    },
    Manifest {
        file: "config/rbac/member.yaml",
        head: "\
# What the ClusterSet controller may do in a member. Apply it in every member; the member's kubeconfig in the home cluster
# holds a token of this ServiceAccount, for example:
#   kubectl -n isthmus-system create token isthmus-mci-controller --duration=8760h
",
        chart: "isthmus",
        release: "isthmus",
        namespace: SYSTEM,
        values: &["gateway.enabled=false", PLAIN],
        templates: &[],
    },
    Manifest {
        file: "config/samples/pool.yaml",
        head: "\
# A pool of model servers with its endpoint picker, as the owner of an inference platform writes it.
# Put your registry, which the images were pushed to, in the place of registry.example.com.
# The model servers are simulated: charts/isthmus-pool puts vLLM in their place where there are GPUs.
",
        chart: "isthmus-pool",
        release: "llama",
        namespace: "llm",
        values: &[
            "image.hub=registry.example.com/isthmus",
            "worker.kind=sim,worker.model=llama,worker.replicas=3",
            "worker.extraArgs={--time-to-first-token=20ms,--inter-token-latency=5ms}",
            "inferencePool.modelServers.matchLabels.app=llama",
            "inferenceExtension.podLabels.app=llama-epp",
            "inferenceExtension.replicas=1,inferenceExtension.service.type=LoadBalancer",
            PLAIN,
        ],
        templates: &[],
    },
];

/// Writes those that changed, or names them.
pub(crate) fn run_all(args: &Args) -> Result<()> {
    let helm = tools::helm()?;
    let mut outdated = Vec::new();
    for manifest in &MANIFESTS {
        let path = workspace::root().join(manifest.file);
        let made = manifest.render(&helm)?;
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        if made == found {
            continue;
        }
        if args.check {
            outdated.push(manifest.file);
        } else {
            std::fs::write(&path, made).with_context(|| format!("writing {}", path.display()))?;
            println!("{}", path.display());
        }
    }
    if !outdated.is_empty() {
        bail!(
            "not as the charts have it: {}; run `cargo xtask manifests`",
            outdated.join(", ")
        );
    }
    Ok(())
}

/// Fails if one of them is not as its chart has it.
pub(crate) fn check() -> Result<()> {
    run_all(&Args { check: true })
}

/// What helm rendered, without what is true of a release alone.
fn plain(rendered: &str) -> String {
    const OF_HELM: [&str; 3] = [
        "# Source: ",
        "app.kubernetes.io/managed-by: Helm",
        "helm.sh/chart: ",
    ];
    let lines = rendered.lines().filter(|line| {
        let line = line.trim_start();
        !line.is_empty() && !OF_HELM.iter().any(|of_helm| line.starts_with(of_helm))
    });
    lines.fold(String::new(), |text, line| text + line + "\n")
}

// === impl Manifest ===

impl Manifest {
    fn render(&self, helm: &Path) -> Result<String> {
        let Self {
            file,
            head,
            chart,
            release,
            namespace,
            values,
            templates,
        } = self;
        let mut command = Command::new(helm);
        command
            .args(["template", release])
            .arg(workspace::root().join("charts").join(chart))
            .args(["--namespace", namespace, "--kube-version", KUBERNETES])
            .args(values.iter().flat_map(|values| ["--set", values]));
        for template in *templates {
            command.args(["--show-only", &format!("templates/{template}")]);
        }
        let rendered = output(&mut command).with_context(|| format!("rendering {file}"))?;
        let rendered = plain(&String::from_utf8(rendered)?);
        Ok(format!(
            "# Rendered from charts/{chart} by `cargo xtask manifests`: edit the chart.\n{head}\
             apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {namespace}\n{rendered}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_of_the_chart_stay_and_what_a_release_alone_has_goes() {
        let rendered = "---\n# Source: isthmus/templates/a.yaml\n# why\nmetadata:\n  labels:\n    \
                        helm.sh/chart: isthmus-0.1.0\n    app.kubernetes.io/managed-by: Helm\n    a: b\n\n";
        assert_eq!(
            plain(rendered),
            "---\n# why\nmetadata:\n  labels:\n    a: b\n"
        );
    }
}
