//! Bodies of the HTTP interface: an array in JSON, or the ids as they are in memory.

use processor_api::{IdsError, parse_ids, write_ids};

use crate::entry::{MAX_BYTES, MAX_IDS};

/// How a body has its ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyForm {
    /// `application/json`: an array.
    Json,
    /// `application/octet-stream`: u32, little-endian.
    Binary,
}

/// Why a body has no ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Its type is neither of the two.
    #[error("the content type is neither application/json nor application/octet-stream")]
    Type,
    /// It is too large: larger ones are not read to their end.
    #[error("it has more than {MAX_BYTES} bytes")]
    TooLarge,
    /// It is no list of ids.
    #[error("it is no list of token ids: {0}")]
    Ids(#[from] IdsError),
    /// It ends inside of an id.
    #[error("its length is no multiple of 4")]
    CutOff,
    /// There are not as many as the header says.
    #[error("it has {found} token ids, and x-tokens-count is {said}")]
    Count {
        /// In the header.
        said: usize,
        /// In the body.
        found: usize,
    },
}

// === impl BodyForm ===

impl BodyForm {
    /// By a content type; parameters may follow it.
    ///
    /// # Errors
    /// [`BodyError::Type`] when it is another one.
    pub fn of_content_type(value: &str) -> Result<Self, BodyError> {
        let name = value.split(';').next().unwrap_or_default().trim();
        [Self::Json, Self::Binary]
            .into_iter()
            .find(|form| name.eq_ignore_ascii_case(form.content_type()))
            .ok_or(BodyError::Type)
    }

    /// What a reader asks for: the binary form where it names it, else JSON, which everything can read.
    pub fn of_accept(value: &str) -> Self {
        let binary = Self::Binary.content_type();
        let mut names = value
            .split(',')
            .map(|part| part.split(';').next().unwrap_or_default().trim());
        if names.any(|name| name.eq_ignore_ascii_case(binary)) {
            Self::Binary
        } else {
            Self::Json
        }
    }

    /// The header's value.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Binary => "application/octet-stream",
        }
    }

    /// Reads the ids of a body; `count` is what the header says, if there is one.
    ///
    /// # Errors
    /// [`BodyError`] when it has none, too many, or not as many as it says.
    pub fn read(self, body: &[u8], count: Option<usize>) -> Result<Vec<u32>, BodyError> {
        if body.len() > MAX_BYTES {
            return Err(BodyError::TooLarge);
        }
        let ids = match self {
            Self::Json => parse_ids(body, MAX_IDS)?,
            Self::Binary => binary_ids(body).ok_or(BodyError::CutOff)?,
        };
        let found = ids.len();
        match count.filter(|said| *said != found) {
            Some(said) => Err(BodyError::Count { said, found }),
            None => Ok(ids),
        }
    }

    /// Writes a body.
    pub fn write(self, ids: &[u32]) -> Vec<u8> {
        match self {
            Self::Json => write_ids(ids).into_bytes(),
            Self::Binary => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        }
    }
}

/// None: the bytes end inside of an id.
pub(crate) fn binary_ids(bytes: &[u8]) -> Option<Vec<u32>> {
    let (ids, rest) = bytes.as_chunks();
    let ids = ids.iter().map(|id| u32::from_le_bytes(*id));
    rest.is_empty().then(|| ids.collect())
}

// === impl BodyError ===

impl BodyError {
    /// Of the HTTP response.
    pub fn status(self) -> u16 {
        match self {
            Self::Type => 415,
            Self::TooLarge => 413,
            Self::Ids(_) | Self::CutOff | Self::Count { .. } => 400,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    proptest! {
        #[test]
        fn each_form_reads_back(ids: Vec<u32>) {
            for form in [BodyForm::Json, BodyForm::Binary] {
                let body = form.write(&ids);
                prop_assert_eq!(form.read(&body, Some(ids.len())), Ok(ids.clone()));
                prop_assert_eq!(BodyForm::of_content_type(form.content_type()), Ok(form));
            }
        }
    }

    #[rstest]
    #[case::no_list(BodyForm::Json, b"{}", None, 400)]
    #[case::float(BodyForm::Json, b"[1.5]", None, 400)]
    #[case::cut_off(BodyForm::Binary, b"12345", None, 400)]
    #[case::count(BodyForm::Json, b"[1,2]", Some(3), 400)]
    #[case::too_large(BodyForm::Binary, &vec![0; MAX_BYTES + 4], None, 413)]
    fn a_body_without_its_ids_is_refused(
        #[case] form: BodyForm,
        #[case] body: &[u8],
        #[case] count: Option<usize>,
        #[case] status: u16,
    ) {
        assert_eq!(
            form.read(body, count).map_err(BodyError::status),
            Err(status)
        );
    }

    #[rstest]
    #[case("application/json; charset=utf-8", Ok(BodyForm::Json))]
    #[case("Application/Octet-Stream", Ok(BodyForm::Binary))]
    #[case("text/plain", Err(415))]
    #[case("", Err(415))]
    fn two_content_types_are_taken(#[case] value: &str, #[case] form: Result<BodyForm, u16>) {
        assert_eq!(
            BodyForm::of_content_type(value).map_err(BodyError::status),
            form
        );
    }

    #[rstest]
    #[case("", BodyForm::Json)]
    #[case("*/*", BodyForm::Json)]
    #[case("application/json, application/octet-stream;q=0.9", BodyForm::Binary)]
    fn a_reader_gets_the_binary_form_where_it_names_it(
        #[case] value: &str,
        #[case] form: BodyForm,
    ) {
        assert_eq!(BodyForm::of_accept(value), form);
    }
}
