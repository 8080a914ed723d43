//! From a client's body to what a chat template sees, as the engine does it.

use minijinja::{Value, value::ValueKind};
use processor_api::Refusal;

use crate::{
    json::{Budget, JsonError, Map},
    template::TemplateError,
};

/// How a template takes the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentFormat {
    /// One string: the text parts, joined by line breaks.
    Text,
    /// A list of parts.
    Parts,
}

/// Arguments of the renderer that a request cannot set by another way.
const RESERVED: [&str; 5] = [
    "chat_template",
    "tokenize",
    "messages",
    "tools",
    "conversation",
];

/// Types of a part that are its text, and under which key the text is.
const TEXT_PARTS: [(&str, &str); 5] = [
    ("text", "text"),
    ("input_text", "text"),
    ("output_text", "text"),
    ("refusal", "refusal"),
    ("thinking", "thinking"),
];

/// A client's body: an object.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    value: Value,
    /// What is left for values that are made of it.
    budget: Budget,
}

// === impl Body ===

impl Body {
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let budget = Budget::default();
        let value = budget.parse(text)?;
        if value.kind() != ValueKind::Map {
            return Err(bad("the request body is no JSON object"));
        }
        Ok(Self { value, budget })
    }

    /// A member that is there and not null.
    pub(crate) fn get(&self, name: &str) -> Option<Value> {
        member(&self.value, name)
    }

    /// Returns a member that is a boolean, or that the engine reads as one, if it is there.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, Refusal> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let flag = as_flag(&value);
        flag.map(Some)
            .ok_or_else(|| bad(&format!("{name} is no boolean")))
    }

    /// Refuses what only the engine can do.
    pub(crate) fn check_supported(&self) -> Result<(), Refusal> {
        let unsupported =
            |name: &str| Refusal::Unsupported(format!("{name} is left to the engine"));
        for name in [
            "chat_template",
            "truncate_prompt_tokens",
            "mm_processor_kwargs",
            "prompt_embeds",
        ] {
            if self.get(name).is_some() {
                return Err(unsupported(name));
            }
        }
        if self.flag("continue_final_message")?.unwrap_or(false) {
            return Err(unsupported("continue_final_message"));
        }
        Ok(())
    }

    /// Whether the client gives tools, which may have a template of their own.
    pub(crate) fn has_tools(&self) -> bool {
        self.get("tools").is_some()
    }

    /// What the template sees, beside the special tokens. Those of `chat_template_kwargs` come first: what the request
    /// says itself counts more.
    pub(crate) fn variables(&self, special: &Map, format: ContentFormat) -> Result<Map, Refusal> {
        let budget = &self.budget;
        let mut variables = special.clone();
        if let Some(kwargs) = self.get("chat_template_kwargs") {
            for (key, value) in members(&kwargs, "chat_template_kwargs")? {
                if key.as_str().is_some_and(|key| RESERVED.contains(&key)) {
                    return Err(bad(&format!("chat_template_kwargs cannot set {key}")));
                }
                variables.insert(key, value);
            }
        }
        for name in ["documents", "reasoning_effort"] {
            if let Some(value) = self.get(name) {
                variables.insert(name.into(), value);
            }
        }
        let documents: Value = "documents".into();
        if !variables.contains_key(&documents) {
            variables.insert(documents, ().into());
        }
        let add_generation_prompt = self.flag("add_generation_prompt")?.unwrap_or(true);
        variables.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let messages = items(&self.get("messages").unwrap_or_default(), "messages")?;
        let messages: Result<Vec<_>, _> = messages
            .iter()
            .map(|message| conversation_message(message, format, budget))
            .collect();
        variables.insert("messages".into(), budget.list(messages?)?);
        let tools = match self.get("tools") {
            None => Value::from(()),
            Some(tools) => {
                let tools = items(&tools, "tools")?;
                let tools: Result<Vec<_>, _> =
                    tools.iter().map(|given| tool(given, budget)).collect();
                budget.list(tools?)?
            }
        };
        variables.insert("tools".into(), tools);
        Ok(variables)
    }
}

impl From<JsonError> for Refusal {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::Invalid(..) => Self::BadRequest(error.to_string()),
            JsonError::LeftToEngine(_) => Self::Unsupported(error.to_string()),
        }
    }
}

impl From<TemplateError> for Refusal {
    fn from(error: TemplateError) -> Self {
        match error {
            TemplateError::Raised(_) => Self::Template(error.to_string()),
            // what is lacking here may be there in the engine, which says so itself where it is not
            TemplateError::Failed(_) | TemplateError::Syntax(_) | TemplateError::TooMuch => {
                Self::Unsupported(error.to_string())
            }
        }
    }
}

pub(crate) fn bad(message: &str) -> Refusal {
    Refusal::BadRequest(message.to_owned())
}

/// The words and numbers that the engine's reader of requests takes for a boolean.
fn as_flag(value: &Value) -> Option<bool> {
    let text = match value.kind() {
        ValueKind::Bool => return Some(value.is_true()),
        ValueKind::Number if *value == Value::from(0) => return Some(false),
        ValueKind::Number if *value == Value::from(1) => return Some(true),
        _ => value.as_str()?.to_ascii_lowercase(),
    };
    match text.as_str() {
        "1" | "on" | "t" | "true" | "y" | "yes" => Some(true),
        "0" | "off" | "f" | "false" | "n" | "no" => Some(false),
        _ => None,
    }
}

fn member(value: &Value, name: &str) -> Option<Value> {
    let found = value.get_attr(name).ok()?;
    (!found.is_undefined() && !found.is_none()).then_some(found)
}

fn members(value: &Value, name: &str) -> Result<Vec<(Value, Value)>, Refusal> {
    if value.kind() != ValueKind::Map {
        return Err(bad(&format!("{name} is no object")));
    }
    let keys = value.try_iter().into_iter().flatten();
    Ok(keys
        .map(|key| {
            let item = value.get_item(&key).unwrap_or_default();
            (key, item)
        })
        .collect())
}

fn items(value: &Value, name: &str) -> Result<Vec<Value>, Refusal> {
    if value.kind() != ValueKind::Seq {
        return Err(bad(&format!("{name} is no list")));
    }
    Ok(value.try_iter().into_iter().flatten().collect())
}

fn object(members: impl IntoIterator<Item = (&'static str, Value)>) -> Map {
    members
        .into_iter()
        .map(|(key, value)| (key.into(), value))
        .collect()
}

/// What the engine keeps of a message: its own fields, in its own order.
fn conversation_message(
    message: &Value,
    format: ContentFormat,
    budget: &Budget,
) -> Result<Value, Refusal> {
    if message.kind() != ValueKind::Map {
        return Err(bad("a message is no object"));
    }
    let role = member(message, "role").filter(|role| role.as_str().is_some());
    let role = role.ok_or_else(|| bad("a message has no role"))?;
    let parts = content_parts(message, budget)?;
    let as_text = format == ContentFormat::Text || role.as_str() == Some("tool");
    let content = if as_text {
        joined(&parts, format)
    } else {
        parts
    };
    let mut result = object([("role", role.clone()), ("content", content)]);
    match role.as_str() {
        Some("assistant") => {
            if let Some(calls) = member(message, "tool_calls") {
                let calls = items(&calls, "tool_calls")?;
                let calls: Result<Vec<_>, _> =
                    calls.iter().map(|call| tool_call(call, budget)).collect();
                // an empty list keeps templates from the way of a plain answer
                let calls = calls?;
                if !calls.is_empty() {
                    result.insert("tool_calls".into(), budget.list(calls)?);
                }
            }
            if let Some(reasoning) = member(message, "reasoning") {
                result.insert("reasoning".into(), reasoning.clone());
                result.insert("reasoning_content".into(), reasoning);
            }
        }
        Some("tool") => {
            if let Ok(id) = message.get_attr("tool_call_id")
                && !id.is_undefined()
            {
                result.insert("tool_call_id".into(), id);
            }
        }
        Some("developer") => {
            let tools = member(message, "tools").unwrap_or(Value::from(()));
            result.insert("tools".into(), tools);
        }
        _ => {}
    }
    for name in ["name", "task"] {
        if let Some(value) = member(message, name).filter(|value| value.as_str().is_some()) {
            result.insert(name.into(), value);
        }
    }
    Ok(budget.dict(result)?)
}

/// The content as a list of text parts.
fn content_parts(message: &Value, budget: &Budget) -> Result<Value, Refusal> {
    let content = member(message, "content").unwrap_or_default();
    let parts = match content.kind() {
        ValueKind::Undefined => Vec::new(),
        ValueKind::String => vec![text_part(content, budget)?],
        ValueKind::Seq => {
            let mut parts = Vec::new();
            for part in content.try_iter().into_iter().flatten() {
                parts.extend(part_of(&part, budget)?);
            }
            parts
        }
        _ => {
            return Err(bad(
                "the content of a message is neither a string nor a list of parts",
            ));
        }
    };
    Ok(budget.list(parts)?)
}

fn text_part(text: Value, budget: &Budget) -> Result<Value, Refusal> {
    Ok(budget.dict(object([("type", "text".into()), ("text", text)]))?)
}

fn part_of(part: &Value, budget: &Budget) -> Result<Option<Value>, Refusal> {
    if part.as_str().is_some() {
        return text_part(part.clone(), budget).map(Some);
    }
    if part.kind() != ValueKind::Map {
        return Err(bad(
            "a part of a message's content is neither an object nor a string",
        ));
    }
    let kind = member(part, "type");
    let known = kind.as_ref().and_then(Value::as_str);
    let known = known.and_then(|kind| TEXT_PARTS.iter().find(|(name, _)| *name == kind));
    let Some((_, key)) = known else {
        return Err(Refusal::Unsupported(
            "content that is not text is left to the engine".to_owned(),
        ));
    };
    let extra = |(field, _): &(Value, Value)| {
        !["type", "uuid", key].contains(&field.as_str().unwrap_or_default())
    };
    if members(part, "a part of a message's content")?
        .iter()
        .any(extra)
    {
        return Err(Refusal::Unsupported(
            "content parts with fields beside their text are left to the engine".to_owned(),
        ));
    }
    match member(part, key) {
        None => Ok(None),
        Some(text) if text.as_str().is_some() => text_part(text, budget).map(Some),
        Some(_) => Err(bad("the text of a message's part is no string")),
    }
}

/// Empty parts are passed over, unless the template was to see each part.
fn joined(parts: &Value, format: ContentFormat) -> Value {
    let texts = parts.try_iter().into_iter().flatten();
    let texts: Vec<String> = texts
        .filter_map(|part| member(&part, "text")?.as_str().map(str::to_owned))
        .filter(|text| format == ContentFormat::Parts || !text.is_empty())
        .collect();
    texts.join("\n").into()
}

/// A tool call whose arguments are parsed from their text: an object in general.
fn tool_call(call: &Value, budget: &Budget) -> Result<Value, Refusal> {
    let function = member(call, "function").filter(|function| function.kind() == ValueKind::Map);
    let kind = member(call, "type");
    let is_function = kind.is_none_or(|kind| kind.as_str() == Some("function"));
    let Some(function) = function.filter(|_| is_function) else {
        return Err(bad("a tool call is no call of a function"));
    };
    let arguments = member(&function, "arguments").filter(Value::is_true);
    let parsed = match arguments {
        None => budget.dict(Map::new())?,
        Some(arguments) => match arguments.as_str() {
            Some(text) => budget.parse(text).map_err(|error| match error {
                JsonError::LeftToEngine(_) => error.into(),
                JsonError::Invalid(..) => Refusal::Unsupported(
                    "arguments of a tool call that are no JSON are left to the engine".to_owned(),
                ),
            })?,
            None if matches!(arguments.kind(), ValueKind::Map | ValueKind::Seq) => arguments,
            None => {
                return Err(bad(
                    "the arguments of a tool call are neither text nor an object",
                ));
            }
        },
    };
    let mut function: Map = members(&function, "function")?.into_iter().collect();
    function.insert("arguments".into(), parsed);
    let mut call: Map = members(call, "a tool call")?.into_iter().collect();
    call.insert("function".into(), budget.dict(function)?);
    Ok(budget.dict(call)?)
}

/// A tool as the engine's typed request writes it: its own fields first, and null where they are not given.
fn tool(tool: &Value, budget: &Budget) -> Result<Value, Refusal> {
    let none = || Value::from(());
    let given = members(tool, "a tool")?;
    let function = member(tool, "function").ok_or_else(|| bad("a tool has no function"))?;
    let name = member(&function, "name").filter(|name| name.as_str().is_some());
    let name = name.ok_or_else(|| bad("the function of a tool has no name"))?;
    let mut typed = object([
        ("name", name),
        (
            "description",
            member(&function, "description").unwrap_or_else(none),
        ),
        (
            "parameters",
            member(&function, "parameters").unwrap_or_else(none),
        ),
    ]);
    for (key, value) in members(&function, "the function of a tool")? {
        typed.entry(key).or_insert(value);
    }
    let typed = budget.dict(typed)?;
    let mut result = object([("type", "function".into()), ("function", typed)]);
    for (key, value) in given {
        result.entry(key).or_insert(value);
    }
    Ok(budget.dict(result)?)
}

#[cfg(test)]
mod tests;
