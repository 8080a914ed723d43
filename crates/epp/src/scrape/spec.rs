//! Which series of a page make one value, written `name{label=value,…}`.

/// The name of a metric, and labels that its series must have. Other labels may be anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricSpec {
    name: String,
    labels: Vec<(String, String)>,
}

/// A text that is no [`MetricSpec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metric spec {text:?}: {fault}; expected name or name{{label=value,label=value}}")]
pub struct SpecError {
    text: String,
    fault: Fault,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Fault {
    #[error("the metric's name is missing")]
    NoName,
    #[error("{0:?} is no metric name")]
    Name(String),
    #[error("the brace is not closed")]
    Open,
    #[error("{0:?} follows the closing brace")]
    Trailing(String),
    #[error("no label between the braces")]
    NoLabel,
    #[error("{0:?} is no label name")]
    LabelName(String),
    #[error("label {0:?} has no value")]
    NoValue(String),
    #[error("label {0:?} has a value whose quote is not closed")]
    OpenQuote(String),
    #[error("label {0:?} is there twice")]
    Twice(String),
}

// === impl MetricSpec ===

impl MetricSpec {
    /// Reads `name` or `name{label=value,label="value"}`. Blanks around each part do not count. A value in quotes may
    /// hold commas and braces, and `\"`, `\\` and `\n` as on a metrics page.
    ///
    /// # Errors
    /// The text is empty or has another form.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        parse(text.trim()).map_err(|fault| SpecError {
            text: text.to_owned(),
            fault,
        })
    }

    /// The metric's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The labels that a series must have, each a name and its value.
    pub fn labels(&self) -> &[(String, String)] {
        &self.labels
    }

    pub(super) fn into_parts(self) -> (String, Vec<(String, String)>) {
        (self.name, self.labels)
    }
}

fn parse(text: &str) -> Result<MetricSpec, Fault> {
    let (name, block) = match text.split_once('{') {
        Some((name, block)) => (name.trim(), Some(block)),
        None => (text, None),
    };
    if name.is_empty() {
        return Err(Fault::NoName);
    }
    if !is_name(name, true) {
        return Err(Fault::Name(name.to_owned()));
    }
    Ok(MetricSpec {
        name: name.to_owned(),
        labels: block.map(parse_labels).transpose()?.unwrap_or_default(),
    })
}

/// Reads `label=value,…}`, with nothing behind.
fn parse_labels(mut rest: &str) -> Result<Vec<(String, String)>, Fault> {
    let mut labels: Vec<(String, String)> = Vec::new();
    loop {
        rest = rest.trim_start();
        let end = rest.find(['=', ',', '}']).ok_or(Fault::Open)?;
        let (key, behind) = rest.split_at_checked(end).ok_or(Fault::Open)?;
        let key = key.trim_end();
        if key.is_empty() && behind.starts_with('}') && labels.is_empty() {
            return Err(Fault::NoLabel);
        }
        if !is_name(key, false) {
            return Err(Fault::LabelName(key.to_owned()));
        }
        let Some(value) = behind.strip_prefix('=') else {
            return Err(Fault::NoValue(key.to_owned()));
        };
        let (value, behind) = parse_value(key, value.trim_start())?;
        if labels.iter().any(|(other, _)| other == key) {
            return Err(Fault::Twice(key.to_owned()));
        }
        labels.push((key.to_owned(), value));
        let behind = behind.trim_start();
        if let Some(behind) = behind.strip_prefix(',') {
            rest = behind;
        } else if let Some(behind) = behind.strip_prefix('}') {
            return match behind.trim_start() {
                "" => Ok(labels),
                more => Err(Fault::Trailing(more.to_owned())),
            };
        } else {
            return Err(Fault::Open);
        }
    }
}

/// Splits a value from what follows it.
fn parse_value<'t>(key: &str, text: &'t str) -> Result<(String, &'t str), Fault> {
    let (value, behind) = if let Some(quoted) = text.strip_prefix('"') {
        parse_quoted(quoted).ok_or_else(|| Fault::OpenQuote(key.to_owned()))?
    } else {
        let end = text.find([',', '}']).ok_or(Fault::Open)?;
        let (value, behind) = text.split_at_checked(end).ok_or(Fault::Open)?;
        (value.trim_end().to_owned(), behind)
    };
    if value.is_empty() {
        return Err(Fault::NoValue(key.to_owned()));
    }
    Ok((value, behind))
}

fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.chars();
    loop {
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => match chars.next()? {
                'n' => value.push('\n'),
                escaped @ ('"' | '\\') => value.push(escaped),
                other => value.extend(['\\', other]),
            },
            other => value.push(other),
        }
    }
}

fn is_name(text: &str, colons: bool) -> bool {
    let is_part =
        |char: char| char.is_ascii_alphanumeric() || char == '_' || (colons && char == ':');
    !text.starts_with(|char: char| char.is_ascii_digit())
        && !text.is_empty()
        && text.chars().all(is_part)
}

#[cfg(test)]
mod tests;
