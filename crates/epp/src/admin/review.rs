//! What the API server says of a reader.

use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};

/// Asks the API server.
#[derive(Clone)]
pub(crate) struct Reviewer {
    tokens: Api<TokenReview>,
    access: Api<SubjectAccessReview>,
}

/// Who wants what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Question {
    pub(super) token: String,
    /// The method, in lower case.
    pub(super) verb: String,
    pub(super) path: String,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    /// The token is nobody's.
    Unknown,
    /// Its owner may not.
    Forbidden,
}

/// Why the API server says nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReviewError {
    /// Of the token.
    #[error("no TokenReview: {0} (expected: create on tokenreviews.authentication.k8s.io)")]
    Token(String),
    /// Of what its owner may do.
    #[error(
        "no SubjectAccessReview: {0} (expected: create on subjectaccessreviews.authorization.k8s.io)"
    )]
    Access(String),
}

// === impl Reviewer ===

impl Reviewer {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            tokens: Api::all(client.clone()),
            access: Api::all(client),
        }
    }

    /// Whose token it is, and whether they may.
    pub(super) async fn ask(&self, question: &Question) -> Result<Verdict, ReviewError> {
        let params = PostParams::default();
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(question.token.clone()),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let answer = self.tokens.create(&params, &review).await;
        let status = answer
            .map_err(|error| ReviewError::Token(root_cause(error)))?
            .status
            .unwrap_or_default();
        let user = match status.user {
            Some(user) if status.authenticated == Some(true) => user,
            _ => return Ok(Verdict::Unknown),
        };
        let review = SubjectAccessReview {
            spec: access_of(user, question),
            ..SubjectAccessReview::default()
        };
        let answer = self.access.create(&params, &review).await;
        let answer = answer.map_err(|error| ReviewError::Access(root_cause(error)))?;
        Ok(match answer.status {
            Some(status) if status.allowed => Verdict::Allowed,
            _ => Verdict::Forbidden,
        })
    }
}

fn access_of(user: UserInfo, question: &Question) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: user.username,
        uid: user.uid,
        groups: user.groups,
        extra: user.extra,
        non_resource_attributes: Some(NonResourceAttributes {
            path: Some(question.path.clone()),
            verb: Some(question.verb.clone()),
        }),
        ..SubjectAccessReviewSpec::default()
    }
}

/// The innermost cause says it best, and without repeating the outer ones.
fn root_cause(error: kube::Error) -> String {
    anyhow::Error::from(error).root_cause().to_string()
}
