use super::*;

fn mk_spec(name: &str) -> EngineSpec {
    EngineSpec {
        name: name.into(),
        waiting: Some(MetricSpec::parse("mine_waiting").unwrap()),
        running: None,
        kv: Vec::new(),
        lora: None,
        cache: None,
    }
}

#[test]
fn an_unknown_or_absent_name_is_the_default_engine() {
    let table = EngineTable::default();
    assert_eq!(table.by_name("sglang").name, "sglang");
    assert_eq!(table.by_name("").name, "vllm");
    assert_eq!(table.by_name("an engine of tomorrow").name, "vllm");
    let table = table.with_default("trtllm-serve").unwrap();
    assert_eq!(table.by_name("").name, "trtllm-serve");
    assert_eq!(table.by_name("vllm").name, "vllm");
}

#[test]
fn a_default_that_is_unknown_is_refused() {
    let error = EngineTable::default().with_default("vlm").unwrap_err();
    assert_eq!(
        error.to_string(),
        "engine \"vlm\" is unknown: use one of sglang, triton-tensorrt-llm, trtllm-serve, vllm"
    );
}

#[test]
fn engines_are_added_and_replaced() {
    let table = EngineTable::with(vec![mk_spec("mine"), mk_spec("vllm")]);
    assert_eq!(*table.by_name("mine"), mk_spec("mine"));
    assert_eq!(*table.by_name("vllm"), mk_spec("vllm"));
    assert_eq!(*table.by_name(""), mk_spec("vllm"), "the default too");
    assert_eq!(table.by_name("sglang").name, "sglang");
}
