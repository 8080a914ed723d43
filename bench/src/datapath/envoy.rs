//! The arguments of a Gateway's Envoy pods, for a process on this machine. Pure.

use anyhow::{Context, Result};
use serde_json::Value;

/// Addresses that are a pod's own.
const OWN: [&str; 2] = ["127.0.0.1", "0.0.0.0"];
/// What a kubelet replaces by the pod's name.
const POD_NAME: &str = "$(POD_NAME).$(POD_NAMESPACE)";

/// The arguments of the container, for an Envoy of this `name` that has the address `ip` for itself: in a pod its pages for
/// administrators and probes are at addresses that several Envoys of one machine would share.
/// # Errors
/// When there is no bootstrap among the arguments.
pub fn adapted(args: &[String], name: &str, ip: &str) -> Result<Vec<String>> {
    let mut args = args.to_vec();
    let at = args.iter().position(|arg| arg == "--config-yaml");
    let bootstrap = at.and_then(|at| args.get_mut(at + 1));
    let bootstrap = bootstrap.context("no --config-yaml among the arguments of Envoy")?;
    let mut config: Value = serde_json::from_str(bootstrap).context("Envoy's bootstrap")?;
    replace_own(&mut config, ip);
    *bootstrap = config.to_string();
    for arg in args.iter_mut().filter(|arg| *arg == POD_NAME) {
        name.clone_into(arg);
    }
    args.push("--use-dynamic-base-id".to_owned());
    Ok(args)
}

fn replace_own(value: &mut Value, ip: &str) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let is_own = field.as_str().is_some_and(|text| OWN.contains(&text));
                if name == "address" && is_own {
                    *field = ip.into();
                } else {
                    replace_own(field, ip);
                }
            }
        }
        Value::Array(values) => {
            for value in values {
                replace_own(value, ip);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_socket(address: &str) -> Value {
        json!({"address": {"socket_address": {"address": address, "port_value": 19_001}}})
    }

    #[test]
    fn own_addresses_are_replaced_and_that_of_the_control_channel_is_kept() {
        let config = |own: [&str; 2]| {
            json!({
                "admin": mk_socket(own[0]),
                "listeners": [mk_socket(own[1])],
                "clusters": [mk_socket("127.16.0.3")],
            })
        };
        let args = |config: Value, name: &str| {
            let config = config.to_string();
            let args = ["--config-yaml", &config, "--service-node", name];
            args.map(str::to_owned).to_vec()
        };
        let made = adapted(&args(config(OWN), POD_NAME), "envoy-west", "10.1.0.1").unwrap();
        let (last, rest) = made.split_last().unwrap();
        assert_eq!(last, "--use-dynamic-base-id");
        assert_eq!(rest, args(config(["10.1.0.1"; 2]), "envoy-west"));
    }

    #[test]
    fn arguments_without_a_bootstrap_are_refused() {
        for args in [vec![], vec!["--config-yaml".to_owned()]] {
            let error = adapted(&args, "envoy", "10.1.0.1").unwrap_err();
            assert!(error.to_string().contains("--config-yaml"), "{error}");
        }
    }
}
