//! Makes the document.

use std::collections::BTreeMap;

use metadata::{
    Bound, Fault,
    wire::{
        Envelope,
        batch::{Applied, Batch, ClusterState, Refused},
        cache::{Locations, Query, Save},
        load::{Add, Drop, Load},
        pick::{Pick, Picks},
    },
};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use crate::route::{Call, PATHS};

/// What stands in the document of one call.
struct Operation {
    summary: &'static str,
    /// In the query: name, whether it is needed, and an example.
    parameters: Vec<(&'static str, bool, Value)>,
    body: Option<Body>,
    reply: Value,
    /// Statuses of refusals, beside those of all calls.
    refusals: Vec<u16>,
}

struct Body {
    schema: Value,
    example: Value,
    required: bool,
}

struct Maker(SchemaGenerator);

/// The whole document.
pub(crate) fn document() -> Value {
    let mut maker = Maker(
        SchemaSettings::draft2020_12()
            .with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
            .into_generator(),
    );
    let mut paths = Map::new();
    for path in &PATHS {
        let mut item = Map::new();
        for (method, call) in path.calls {
            let operation = maker.operation(*call);
            let name = method.as_str().to_ascii_lowercase();
            item.insert(name, operation.written(path.template));
        }
        paths.insert(path.template.to_owned(), Value::Object(item));
    }
    let refused = maker.inline::<Envelope<Refused>>();
    let mut responses = Map::new();
    for (status, text) in refusals() {
        let content = json!({ "application/json": { "schema": refused } });
        let response = json!({ "description": text, "headers": headers(), "content": content });
        responses.insert(status.to_string(), response);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Metadata-Center",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The load of model servers and the prompts that they have seen, shared by endpoint pickers.",
        },
        "paths": paths,
        "components": {
            "schemas": maker.0.take_definitions(true),
            "responses": responses,
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
        },
    })
}

/// By status: the codes and reasons that it is sent for.
fn refusals() -> BTreeMap<u32, String> {
    let text = String::new;
    let all = [
        Fault::invalid("field", "why"),
        Fault::Unauthorized,
        Fault::NotFound(text()),
        Fault::UnknownRequest(text()),
        Fault::Method { allowed: "" },
        Fault::Duplicate(text()),
        Fault::LeaseLost,
        Fault::StaleEpoch { current: 0 },
        Fault::StaleSeq {
            last: 0,
            applied: false,
        },
        Fault::TooLarge { limit: 0 },
        Fault::Limit(Bound::Requests),
        Fault::Limit(Bound::Endpoints),
        Fault::Limit(Bound::Clusters),
        Fault::Limit(Bound::Instances),
        Fault::Internal,
        Fault::BackendUnavailable(text()),
        Fault::ShuttingDown,
    ];
    let mut by_status = BTreeMap::<u32, Vec<String>>::new();
    for fault in all {
        let reasons = by_status.entry(fault.code() / 100_000).or_default();
        reasons.push(format!("{} {}", fault.code(), fault.reason()));
    }
    let joined = |(status, reasons): (u32, Vec<String>)| (status, reasons.join(", "));
    by_status.into_iter().map(joined).collect()
}

/// Of each reply.
fn headers() -> Value {
    let header = |text: &str| json!({ "description": text, "schema": { "type": "string" } });
    json!({
        "X-Trace-Id": header("As the caller sent it in TraceId or X-Request-Id, else a UUID"),
        "X-Metadata-Boot": header("16 hexadecimal digits that change when state was lost"),
    })
}

// === impl Operation ===

impl Operation {
    fn new(summary: &'static str, reply: Value) -> Self {
        Self {
            summary,
            parameters: Vec::new(),
            body: None,
            reply,
            refusals: Vec::new(),
        }
    }

    /// Takes it where it is.
    fn strict(mut self) -> Self {
        self.parameters.push(("strict", false, json!(false)));
        self
    }

    fn with(mut self, name: &'static str, example: impl Into<Value>) -> Self {
        self.parameters.push((name, true, example.into()));
        self
    }

    fn with_body(mut self, body: Body) -> Self {
        self.body = Some(body);
        self.refusals.push(413);
        self
    }

    fn refused(mut self, statuses: &[u16]) -> Self {
        self.refusals.extend(statuses);
        self
    }

    fn written(self, template: &str) -> Value {
        let is_call = template.starts_with("/v1/");
        let mut parameters = Vec::new();
        let segment = template
            .split_once('{')
            .and_then(|(_, rest)| rest.strip_suffix('}'));
        if let Some(name) = segment {
            let schema = json!({ "type": "string", "minLength": 1, "maxLength": 128 });
            parameters
                .push(json!({ "name": name, "in": "path", "required": true, "schema": schema }));
        }
        for (name, required, example) in self.parameters {
            if segment == Some(name) {
                continue;
            }
            let kind = match example {
                Value::Bool(_) => "boolean",
                Value::Number(_) => "integer",
                _ => "string",
            };
            let schema = json!({ "type": kind });
            parameters.push(json!({
                "name": name, "in": "query", "required": required, "schema": schema, "example": example,
            }));
        }
        let mut responses = Map::new();
        responses.insert("200".to_owned(), self.reply);
        if is_call {
            let of_all: [u16; 5] = [400, 401, 405, 500, 503];
            for status in of_all.into_iter().chain(self.refusals) {
                let to = format!("#/components/responses/{status}");
                responses.insert(status.to_string(), json!({ "$ref": to }));
            }
        }
        let mut written = json!({
            "summary": self.summary, "parameters": parameters, "responses": responses,
        });
        if is_call {
            // With --token-file it is needed.
            written["security"] = json!([{}, { "bearer": [] }]);
        }
        if let Some(Body {
            schema,
            example,
            required,
        }) = self.body.filter(|_| segment.is_none())
        {
            let content = json!({ "schema": schema, "example": example });
            written["requestBody"] =
                json!({ "required": required, "content": { "application/json": content } });
        }
        written
    }
}

// === impl Maker ===

impl Maker {
    fn schema<T: JsonSchema>(&mut self) -> Value {
        self.0.subschema_for::<T>().to_value()
    }

    /// Where it is used: types with parameters have no names of their own.
    fn inline<T: JsonSchema>(&mut self) -> Value {
        T::json_schema(&mut self.0).to_value()
    }

    /// With all defaults; `null` if it is no such body.
    fn body<T: JsonSchema + Serialize + DeserializeOwned>(&mut self, example: &str) -> Body {
        Body {
            schema: self.schema::<T>(),
            example: example_of::<T>(example),
            required: true,
        }
    }

    fn reply<T: JsonSchema + Serialize + DeserializeOwned>(&mut self, data: &str) -> Value {
        let text = format!(
            r#"{{"status":"OK","error":null,"data":{data},"trace_id":"6e1f0a52-9d35-4c0e-8c1e-1d6f1a3b7c20"}}"#
        );
        let schema = self.inline::<Envelope<T>>();
        let content = json!({ "schema": schema, "example": example_of::<Envelope<T>>(&text) });
        json!({
            "description": "done", "headers": headers(), "content": { "application/json": content },
        })
    }

    /// Of a call that has an effect and no answer.
    fn done(&mut self) -> Value {
        self.reply::<()>("null")
    }

    fn operation(&mut self, call: Call) -> Operation {
        match call {
            Call::Loads => Operation::new(
                "Load of the endpoints of a cluster by address; null for an unknown cluster",
                self.reply::<Vec<Load>>(
                    r#"[{"ip":"10.0.0.1:8000","queued_req_num":1,"prompt_length":4096,"updated_time":1790000000000000000}]"#,
                ),
            )
            .with("cluster", "ns/pool"),
            Call::Add => Operation::new("A request was sent to an endpoint", self.done())
                .with_body(self.body::<Add>(
                    r#"{"cluster":"ns/pool","request_id":"r-1","ip":"10.0.0.1:8000","prompt_length":4096}"#,
                ))
                .strict()
                .refused(&[409, 429]),
            Call::PromptDone => {
                let done = self.done();
                self.delete("The first token of a request came", done)
            }
            Call::Remove => {
                let done = self.done();
                self.delete("A request ended", done)
            }
            Call::Batch => Operation::new(
                "What changed at one owner, ordered, under a lease",
                self.reply::<Applied>(r#"{"resync":false,"lease_ms":15000}"#),
            )
            .with_body(self.body::<Batch>(
                r#"{"cluster":"ns/pool","instance":"epp-0","epoch":1790000000000,"shard":3,"seq":1,"full":true,
                "lease_ms":15000,"puts":[{"request_id":"r-2","ip":"10.0.0.1:8000","prompt_length":4096}],
                "deletes":["r-0"],"live":1,"prompt_sum":4096}"#,
            ))
            .refused(&[409, 429]),
            Call::EndLeases => Operation::new(
                "An instance ends: its charges go, unless it reports with a later epoch",
                self.done(),
            )
            .with("epoch", 1_790_000_000_000_u64),
            Call::Purge => Operation::new(
                "An endpoint has no prompt any more: it is gone or began anew",
                self.done(),
            )
            .with("cluster", "ns/pool")
            .with("ip", "10.0.0.1:8000"),
            Call::Query => Operation::new(
                "The endpoints that have seen most of a prompt",
                self.reply::<Locations>(r#"{"locations":[{"ip":"10.0.0.1:8000","length":2}]}"#),
            )
            .with_body(self.body::<Query>(
                r#"{"cluster":"ns/pool","prompt_hash":[13071765710931616942,688797103392425890],"top_k":3}"#,
            )),
            Call::Save => Operation::new("An endpoint has seen a prompt", self.done())
                .with_body(self.body::<Save>(
                    r#"{"cluster":"ns/pool","prompt_hash":[13071765710931616942,688797103392425890],"ip":"10.0.0.1:8000"}"#,
                ))
                .refused(&[429]),
            Call::Pick => self.pick(),
            Call::Clusters => Operation::new(
                "What there is, by cluster",
                self.reply::<Vec<ClusterState>>(
                    r#"[{"cluster":"ns/pool","endpoints":1,"requests":1,"chunks":2,"leases":[{"instance":"epp-0",
                    "epoch":1790000000000,"live":1,"prompt_sum":4096,"remaining_ms":14321}]}]"#,
                ),
            ),
            Call::Metrics => page("Metrics in the text format of Prometheus"),
            Call::Healthz => page("Whether the process works"),
            Call::Readyz => page("Whether calls may be sent here"),
            Call::OpenApi => page("This document"),
        }
    }

    fn pick(&mut self) -> Operation {
        Operation::new(
            "Chooses an endpoint by load and cached prompt and reserves it, in one step",
            self.reply::<Picks>(
                r#"{"picks":[{"ip":"10.0.0.1:8000","score":0.77,"raw":0.58,"matched":2,"queued_req_num":0,"prompt_length":0}],
                "charge":512,"candidates":1}"#,
            ),
        )
        .with_body(self.body::<Pick>(
            r#"{"cluster":"ns/pool","request_id":"r-3","prompt_hash":[13071765710931616942,688797103392425890],
            "prompt_length":1000,"reserve_ms":10000,"candidates":[{"ip":"10.0.0.1:8000"}]}"#,
        ))
        .refused(&[429])
    }

    /// The id is in the path, in the query or in the body.
    fn delete(&mut self, summary: &'static str, done: Value) -> Operation {
        let body = self.body::<Drop>(r#"{"request_id":"r-1"}"#);
        let mut operation = Operation::new(summary, done)
            .with_body(Body {
                required: false,
                ..body
            })
            .strict()
            .refused(&[404]);
        operation
            .parameters
            .push(("request_id", false, json!("r-1")));
        operation
    }
}

/// What is no JSON of ours.
fn page(summary: &'static str) -> Operation {
    Operation::new(
        summary,
        json!({ "description": "a page", "headers": headers() }),
    )
}

fn example_of<T: Serialize + DeserializeOwned>(text: &str) -> Value {
    let example = serde_json::from_str::<T>(text).ok();
    example.map_or(Value::Null, |example| json!(example))
}
