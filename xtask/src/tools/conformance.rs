//! The official conformance suites of Gateway API and of its Inference Extension, and the echo server that they send
//! requests to: built from one Go module.

use std::{
    hash::{DefaultHasher, Hasher},
    path::PathBuf,
};

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::{GoTool, compile, find, go_tool, go_version};
use crate::{lock, workspace};

pub(super) const MODULE: &str = "e2e/conformance";
/// Version of Gateway API's suite; `e2e/conformance/go.mod` holds the same.
const GATEWAY_API: &str = "v1.6.3";
/// Version of the Inference Extension's suite; `e2e/conformance/go.mod` holds the same.
const INFERENCE_EXTENSION: &str = "v1.6.0";

pub(super) const ECHO: GoTool = GoTool {
    name: "echo-basic",
    package: "sigs.k8s.io/gateway-api/conformance/echo-basic",
};

/// A suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// That of the Gateway API Inference Extension
    Inference,
    /// That of Gateway API, profile GATEWAY-HTTP
    Gateway,
}

/// Finds or builds the echo server.
pub(crate) fn echo_server() -> Result<PathBuf> {
    go_tool(&ECHO, MODULE, "ECHO_BASIC_BIN", GATEWAY_API)
}

// === impl Suite ===

impl Suite {
    /// As it is named on command lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::Gateway => "gateway",
        }
    }

    /// The version of the suite, as its report names it.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::Inference => INFERENCE_EXTENSION,
            Self::Gateway => GATEWAY_API,
        }
    }

    /// The variable that says where its program is.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::Inference => "CONFORMANCE_INFERENCE_BIN",
            Self::Gateway => "CONFORMANCE_GATEWAY_BIN",
        }
    }

    /// Finds or builds its program. Returns the program's name too.
    pub(crate) fn tool(self) -> Result<(&'static str, PathBuf)> {
        let tool = match self {
            Self::Inference => GoTool {
                name: "conformance-inference",
                package: "./inference",
            },
            Self::Gateway => GoTool {
                name: "conformance-gateway",
                package: "./gateway",
            },
        };
        let _lock = lock::tool(tool.name)?;
        let version = self.stamp()?;
        let path = match find(tool.name, self.variable(), &version)? {
            Some(path) => path,
            None => compile(&["test", "-c"], &tool, MODULE, "-s -w", &version)?,
        };
        Ok((tool.name, path))
    }

    /// What its program is made from: other modules, and a file of ours.
    fn stamp(self) -> Result<String> {
        let source = workspace::root().join(MODULE).join(self.name());
        let source = source.join("conformance_test.go");
        let text =
            std::fs::read(&source).with_context(|| format!("reading {}", source.display()))?;
        let mut hasher = DefaultHasher::new();
        hasher.write(&text);
        let modules = go_version(self.version(), MODULE)?;
        Ok(format!("{modules} {:016x}", hasher.finish()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_module_and_crds_are_of_the_suites_versions() {
        let read = |path: &str| {
            let path = workspace::root().join(path).join("go.mod");
            std::fs::read_to_string(path).expect("go.mod")
        };
        for (module, package, version) in [
            (MODULE, "gateway-api/conformance", GATEWAY_API),
            (
                MODULE,
                "gateway-api-inference-extension/conformance",
                INFERENCE_EXTENSION,
            ),
            // the suites refuse CRDs of another version
            ("e2e/tools/crds", "gateway-api", GATEWAY_API),
            (
                "e2e/tools/crds",
                "gateway-api-inference-extension",
                INFERENCE_EXTENSION,
            ),
        ] {
            let text = read(module);
            let pin = format!("sigs.k8s.io/{package} {version}\n");
            assert!(text.contains(&pin), "{module}: no {pin}{text}");
        }
    }
}
