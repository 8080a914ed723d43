//! What must hold. All use the Deployment that [`prepare`] makes; the last one deletes it.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use testbed::{Cluster, PodFaults, Testbed, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

type Outcome<'a> = Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;
type Run = fn(&Testbed) -> Outcome<'_>;

/// Name and trial.
pub(crate) const ALL: &[(&str, Run)] = &[
    ("deployment_runs_and_its_addresses_answer", |testbed| {
        Box::pin(addresses_answer(testbed))
    }),
    ("pod_sees_its_environment_and_its_token", |testbed| {
        Box::pin(environment(testbed))
    }),
    ("changed_secret_reaches_the_pod", |testbed| {
        Box::pin(secret_update(testbed))
    }),
    ("other_cluster_reaches_the_load_balancer", |testbed| {
        Box::pin(across(testbed))
    }),
    ("cut_link_is_silent_and_heals", |testbed| {
        Box::pin(cut_and_heal(testbed))
    }),
    ("killed_container_restarts", |testbed| {
        Box::pin(kill(testbed))
    }),
    (
        "held_container_stays_down_until_it_may_restart",
        |testbed| Box::pin(hold(testbed)),
    ),
    ("exited_container_tells_its_code", |testbed| {
        Box::pin(exit_code(testbed))
    }),
    ("paused_pod_becomes_unready_and_recovers", |testbed| {
        Box::pin(pause_pod(testbed))
    }),
    ("blackholed_pod_becomes_unready_and_recovers", |testbed| {
        Box::pin(blackhole(testbed))
    }),
    ("paused_api_server_answers_again_after_resume", |testbed| {
        Box::pin(pause_api_server(testbed))
    }),
    ("restarted_api_server_keeps_its_objects", |testbed| {
        Box::pin(restart_api_server(testbed))
    }),
    ("service_account_may_do_what_it_is_granted", |testbed| {
        Box::pin(least_privilege(testbed))
    }),
    (
        "unknown_image_and_mount_are_told_in_the_status",
        |testbed| Box::pin(told_in_status(testbed)),
    ),
    ("envoy_runs_as_a_pod", |testbed| Box::pin(envoy(testbed))),
    ("deleted_deployment_leaves_nothing", |testbed| {
        Box::pin(deletion(testbed))
    }),
];

const SOON: Duration = Duration::from_secs(20);

const ECHO: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: ml}
---
apiVersion: v1
kind: Secret
metadata: {name: keys, namespace: ml}
stringData: {token: first}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: ml}
data: {MODE: fast}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: ml}
spec:
  type: LoadBalancer
  selector: {app: echo}
  ports: [{name: http, port: 80, targetPort: web}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: echo, namespace: ml}
spec:
  replicas: 2
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - name: echo
        image: registry.example/isthmus/echo:v1
        ports: [{name: web, containerPort: 8080}]
        envFrom: [{configMapRef: {name: settings}}]
        env:
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: URL, value: 'http://$(POD_IP):8080'}
        - {name: TOKEN, valueFrom: {secretKeyRef: {name: keys, key: token}}}
        readinessProbe: {httpGet: {path: /, port: web}, periodSeconds: 1, failureThreshold: 1}
        volumeMounts: [{name: keys, mountPath: /var/run/keys}, {name: keys, mountPath: /etc/isthmus-keys/a}]
      volumes: [{name: keys, secret: {secretName: keys}}]
";

/// Applies the Deployment that all trials use.
pub(crate) async fn prepare(testbed: &Testbed) -> anyhow::Result<()> {
    for cluster in testbed.clusters() {
        cluster.apply_yaml(ECHO).await?;
    }
    Ok(())
}

async fn addresses_answer(testbed: &Testbed) -> anyhow::Result<()> {
    for cluster in testbed.clusters() {
        for address in service_addresses(cluster).await? {
            eventually("an answer", SOON, async || get(address, "/").await).await?;
        }
        for pod in ready_pods(cluster, 2).await? {
            let address = pod_address(&pod)?;
            let name = get(address, "/").await?;
            ensure!(name == pod.name_any(), "{name} answers at {address}");
        }
    }
    Ok(())
}

async fn environment(testbed: &Testbed) -> anyhow::Result<()> {
    let pods = ready_pods(testbed.cluster("east")?, 2).await?;
    let address = pod_address(&pods[0])?;
    ensure!(get(address, "/env/MODE").await? == "fast");
    ensure!(get(address, "/env/TOKEN").await? == "first");
    // what the machine has beside a directory that is mounted there
    ensure!(get(address, "/file/etc/passwd").await?.contains(":/"));
    ensure!(get(address, "/env/URL").await? == format!("http://{address}"));
    ensure!(get(address, "/env/KUBERNETES_SERVICE_HOST").await? == "10.1.255.1");
    ensure!(
        get(address, "/env/ECHO_PORT")
            .await?
            .starts_with("tcp://10.1.")
    );
    let account = "/file/var/run/secrets/kubernetes.io/serviceaccount";
    ensure!(get(address, &format!("{account}/namespace")).await? == "ml");
    ensure!(
        get(address, &format!("{account}/ca.crt"))
            .await?
            .starts_with("-----BEGIN CERTIFICATE")
    );
    ensure!(
        get(address, &format!("{account}/token"))
            .await?
            .split('.')
            .count()
            == 3
    );
    Ok(())
}

async fn secret_update(testbed: &Testbed) -> anyhow::Result<()> {
    let east = testbed.cluster("east")?;
    let pods = ready_pods(east, 2).await?;
    let address = pod_address(&pods[0])?;
    ensure!(get(address, "/file/run/keys/token").await? == "first");
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: keys, namespace: ml}\nstringData: {token: second, more: x}\n";
    east.apply_yaml(secret).await?;
    eventually("the new secret", SOON, async || {
        expect("second", &get(address, "/file/run/keys/token").await?)?;
        expect(
            "second",
            &get(address, "/file/etc/isthmus-keys/a/token").await?,
        )?;
        expect("x", &get(address, "/file/run/keys/more").await?)
    })
    .await?;
    Ok(())
}

async fn across(testbed: &Testbed) -> anyhow::Result<()> {
    let east = testbed.cluster("east")?;
    let names: Vec<String> = ready_pods(east, 2)
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    let [_, balancer] = service_addresses(east).await?;
    let west = pod_address(&ready_pods(testbed.cluster("west")?, 2).await?[0])?;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..4 {
        seen.insert(get(west, &format!("/fetch/{balancer}")).await?);
    }
    ensure!(
        seen.iter().all(|name| names.contains(name)),
        "answers of {seen:?}, not of {names:?}"
    );
    ensure!(seen.len() == 2, "only {seen:?} answered");
    Ok(())
}

async fn cut_and_heal(testbed: &Testbed) -> anyhow::Result<()> {
    let (east, west) = (testbed.cluster("east")?, testbed.cluster("west")?);
    let [_, balancer] = service_addresses(east).await?;
    let target = pod_address(&ready_pods(east, 2).await?[0])?;
    let client = pod_address(&ready_pods(west, 2).await?[0])?;
    testbed.cut("east", "west").await?;
    for address in [balancer, target] {
        let seen = get(client, &format!("/fetch/{address}")).await?;
        ensure!(seen == "timeout", "{address}: {seen}");
    }
    ensure!(
        get(target, "/").await.is_ok(),
        "the hub must still reach east"
    );
    testbed.heal("west", "east").await?;
    let seen = get(client, &format!("/fetch/{balancer}")).await?;
    ensure!(seen.starts_with("echo-"), "{seen}");
    Ok(())
}

async fn kill(testbed: &Testbed) -> anyhow::Result<()> {
    let east = testbed.cluster("east")?;
    let name = ready_pods(east, 2).await?[0].name_any();
    let before = restarts(east, &name).await?;
    testbed.pod("east", "ml", &name)?.kill();
    eventually("a restart", SOON, async || {
        let now = restarts(east, &name).await?;
        if now > before {
            Ok(())
        } else {
            bail!("{now} restarts")
        }
    })
    .await?;
    ready_pods(east, 2).await?;
    Ok(())
}

async fn hold(testbed: &Testbed) -> anyhow::Result<()> {
    let east = testbed.cluster("east")?;
    for end in [
        PodFaults::kill_and_hold as fn(&PodFaults),
        PodFaults::terminate_and_hold,
    ] {
        let pod = &ready_pods(east, 2).await?[0];
        let (name, address) = (pod.name_any(), pod_address(pod)?);
        let before = restarts(east, &name).await?;
        let faults = testbed.pod("east", "ml", &name)?;
        end(&faults);
        eventually("the end of the container", SOON, async || {
            if get(address, "/").await.is_err() {
                Ok(())
            } else {
                Err("it answers")
            }
        })
        .await?;
        // longer than the node waits before it restarts a container: 200 ms after the first end and twice as long after
        // each further one; after 20 s without an end the wait is 200 ms again
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            ensure!(get(address, "/").await.is_err(), "it runs again");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        ensure!(
            restarts(east, &name).await? == before,
            "it was restarted meanwhile"
        );
        faults.let_restart();
        ready_pods(east, 2).await?;
    }
    Ok(())
}

async fn exit_code(testbed: &Testbed) -> anyhow::Result<()> {
    let east = testbed.cluster("east")?;
    let pod = &ready_pods(east, 2).await?[1];
    let _closed = get(pod_address(pod)?, "/exit").await;
    let code = eventually("the exit code", SOON, async || {
        let pod = pods(east).get(&pod.name_any()).await?;
        let status = pod
            .status
            .and_then(|status| status.container_statuses)
            .unwrap_or_default();
        let last = status
            .into_iter()
            .next()
            .and_then(|status| status.last_state);
        let last = last
            .and_then(|state| state.terminated)
            .context("not ended yet")?;
        anyhow::Ok(last.exit_code)
    })
    .await?;
    ensure!(code == 7, "exit code {code}");
    ready_pods(east, 2).await?;
    Ok(())
}

async fn pause_pod(testbed: &Testbed) -> anyhow::Result<()> {
    let east = testbed.cluster("east")?;
    let name = ready_pods(east, 2).await?[0].name_any();
    let pod = testbed.pod("east", "ml", &name)?;
    pod.pause();
    ready_pods(east, 1).await?;
    pod.resume();
    ready_pods(east, 2).await?;
    Ok(())
}

async fn blackhole(testbed: &Testbed) -> anyhow::Result<()> {
    let east = testbed.cluster("east")?;
    let name = ready_pods(east, 2).await?[0].name_any();
    let pod = testbed.pod("east", "ml", &name)?;
    pod.blackhole().await?;
    ready_pods(east, 1).await?;
    pod.heal().await?;
    ready_pods(east, 2).await?;
    Ok(())
}

async fn pause_api_server(testbed: &Testbed) -> anyhow::Result<()> {
    let east = testbed.cluster("east")?;
    testbed.api_server("east")?.pause().await;
    let hangs = timeout(
        Duration::from_secs(1),
        pods(east).list(&ListParams::default()),
    )
    .await
    .is_err();
    testbed.api_server("east")?.resume().await;
    ensure!(hangs, "a paused API server answered");
    ready_pods(east, 2).await?;
    Ok(())
}

async fn restart_api_server(testbed: &Testbed) -> anyhow::Result<()> {
    let east = testbed.cluster("east")?;
    testbed.api_server("east")?.kill().await;
    let gone = timeout(
        Duration::from_secs(5),
        pods(east).list(&ListParams::default()),
    )
    .await;
    testbed.api_server("east")?.restart().await?;
    ensure!(!matches!(gone, Ok(Ok(_))), "a killed API server answered");
    ready_pods(east, 2).await?;
    let [service, _] = service_addresses(east).await?;
    get(service, "/").await?;
    Ok(())
}

async fn least_privilege(testbed: &Testbed) -> anyhow::Result<()> {
    let east = testbed.cluster("east")?;
    let yaml = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: ml}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: ml}
rules: [{apiGroups: [''], resources: [pods], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: ml}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: ml}]
";
    east.apply_yaml(yaml).await?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("kubeconfig");
    std::fs::write(
        &path,
        east.service_account_kubeconfig("ml", "reader").await?,
    )?;
    let reader = Cluster::from_kubeconfig("east", &path, &testbed.tools().kubectl).await?;
    let listed = eventually("the role", SOON, async || {
        reader
            .kubectl(&["get", "pods", "-n", "ml", "-o", "name"])
            .await
    });
    ensure!(listed.await?.contains("pod/echo-"));
    let Err(error) = reader.kubectl(&["get", "secrets", "-n", "ml"]).await else {
        bail!("it may read secrets");
    };
    ensure!(error.to_string().contains("forbidden"), "{error}");
    Ok(())
}

async fn told_in_status(testbed: &Testbed) -> anyhow::Result<()> {
    let west = testbed.cluster("west")?;
    let yaml = "
apiVersion: v1
kind: Pod
metadata: {name: unknown-image, namespace: ml}
spec: {containers: [{name: c, image: 'nobody/knows:v1'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: unknown-mount, namespace: ml}
spec:
  containers: [{name: c, image: isthmus/echo, volumeMounts: [{name: v, mountPath: /opt/x}]}]
  volumes: [{name: v, emptyDir: {}}]
";
    west.apply_yaml(yaml).await?;
    for (name, reason) in [
        ("unknown-image", "ImagePullBackOff"),
        ("unknown-mount", "UnsupportedMount"),
    ] {
        eventually(reason, SOON, async || {
            let pod = pods(west).get(name).await?;
            let status = pod
                .status
                .and_then(|status| status.container_statuses)
                .unwrap_or_default();
            let state = status.into_iter().next().and_then(|status| status.state);
            let waiting = state
                .and_then(|state| state.waiting)
                .context("not waiting")?;
            expect(reason, &waiting.reason.unwrap_or_default())
        })
        .await?;
        pods(west)
            .delete(name, &DeleteParams::default().grace_period(0))
            .await?;
    }
    Ok(())
}

async fn envoy(testbed: &Testbed) -> anyhow::Result<()> {
    let west = testbed.cluster("west")?;
    let yaml = "
apiVersion: v1
kind: Pod
metadata: {name: envoy, namespace: ml}
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - name: envoy
    image: docker.io/envoyproxy/envoy:v1.40.0
    command: [envoy]
    args: ['--config-yaml', 'admin: {address: {socket_address: {address: 0.0.0.0, port_value: 9901}}}']
    readinessProbe: {httpGet: {path: /ready, port: 9901}, periodSeconds: 1}
";
    west.apply_yaml(yaml).await?;
    let ready = eventually("a ready Envoy", SOON, async || {
        let status = pods(west).get("envoy").await?.status.unwrap_or_default();
        let statuses = status.container_statuses.unwrap_or_default();
        let seen = statuses.first().context("no status")?;
        ensure!(seen.ready, "{:?}", seen.state);
        anyhow::Ok(())
    });
    ready
        .await
        .context(testbed.log_tail("west/pods/ml/envoy/envoy", 20))?;
    west.kubectl(&["delete", "pod", "envoy", "-n", "ml"])
        .await?;
    Ok(())
}

async fn deletion(testbed: &Testbed) -> anyhow::Result<()> {
    let east = testbed.cluster("east")?;
    let address = pod_address(&ready_pods(east, 2).await?[0])?;
    let [service, _] = service_addresses(east).await?;
    let begin = Instant::now();
    east.kubectl(&[
        "delete",
        "deployment",
        "echo",
        "-n",
        "ml",
        "--cascade=foreground",
    ])
    .await?;
    eventually("no pods", SOON, async || {
        let left = pods(east).list(&ListParams::default()).await?.items.len();
        if left == 0 {
            Ok(())
        } else {
            bail!("{left} pods")
        }
    })
    .await?;
    println!("pods gone after {:.1} s", begin.elapsed().as_secs_f64());
    ensure!(get(address, "/").await.is_err(), "a deleted pod answers");
    eventually("refusal without endpoints", SOON, async || {
        match get(service, "/").await {
            Ok(answer) => bail!("{answer} answers"),
            Err(error) if format!("{error:#}").contains("refused") => Ok(()),
            Err(error) => Err(error),
        }
    })
    .await?;
    Ok(())
}

fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.client(), "ml")
}

async fn restarts(cluster: &Cluster, pod: &str) -> anyhow::Result<i32> {
    let status = pods(cluster)
        .get(pod)
        .await?
        .status
        .and_then(|status| status.container_statuses);
    Ok(status
        .unwrap_or_default()
        .iter()
        .map(|status| status.restart_count)
        .sum())
}

/// Waits until exactly `count` pods of the Deployment are ready; by name.
async fn ready_pods(cluster: &Cluster, count: usize) -> anyhow::Result<Vec<Pod>> {
    let what = format!("{count} ready pods in {}", cluster.name());
    let ready = eventually(&what, SOON, async || {
        let listed = pods(cluster)
            .list(&ListParams::default().labels("app=echo"))
            .await?;
        let is_ready = |pod: &Pod| {
            let conditions = pod
                .status
                .as_ref()
                .and_then(|status| status.conditions.as_deref());
            conditions
                .unwrap_or_default()
                .iter()
                .any(|one| one.type_ == "Ready" && one.status == "True")
        };
        let seen = serde_json::to_string(
            &listed
                .items
                .iter()
                .map(|pod| &pod.status)
                .collect::<Vec<_>>(),
        )?;
        let ready: Vec<Pod> = listed.items.into_iter().filter(is_ready).collect();
        if ready.len() == count {
            Ok(ready)
        } else {
            bail!("{} are ready: {seen}", ready.len())
        }
    });
    Ok(ready.await?)
}

fn pod_address(pod: &Pod) -> anyhow::Result<SocketAddr> {
    let ip = pod
        .status
        .as_ref()
        .and_then(|status| status.pod_ip.as_ref())
        .context("no pod IP")?;
    Ok(SocketAddr::new(ip.parse()?, 8080))
}

/// Cluster address and load balancer address of the echo Service.
async fn service_addresses(cluster: &Cluster) -> anyhow::Result<[SocketAddr; 2]> {
    let services: Api<Service> = Api::namespaced(cluster.client(), "ml");
    let found = eventually("a load balancer address", SOON, async || {
        let service = services.get("echo").await?;
        let spec = service.spec.context("no spec")?;
        let ingress = service
            .status
            .and_then(|status| status.load_balancer)
            .and_then(|balancer| balancer.ingress);
        let ingress = ingress
            .unwrap_or_default()
            .into_iter()
            .next()
            .and_then(|ingress| ingress.ip);
        let own: std::net::IpAddr = spec.cluster_ip.context("no cluster IP")?.parse()?;
        let balancer: std::net::IpAddr = ingress.context("no ingress")?.parse()?;
        anyhow::Ok([SocketAddr::new(own, 80), SocketAddr::new(balancer, 80)])
    });
    Ok(found.await?)
}

async fn get(address: SocketAddr, path: &str) -> anyhow::Result<String> {
    let work = async {
        let mut stream = TcpStream::connect(address).await?;
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes())
            .await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
        Ok(body.to_owned())
    };
    timeout(SOON, work)
        .await
        .with_context(|| format!("GET {address}{path}"))?
}

fn expect(wanted: &str, seen: &str) -> anyhow::Result<()> {
    ensure!(wanted == seen, "{seen:?}, not {wanted:?}");
    Ok(())
}
