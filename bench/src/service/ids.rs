//! The requests to a Processor and to a Router.

use std::io::Write;

use anyhow::{Result, ensure};
use memchr::memmem;

use super::calls::{Caller, Request};

/// Prompts of ids, in the binary form.
#[derive(Debug)]
pub struct Routes {
    caller: u32,
    calls: u32,
    ids: u32,
    request: Request,
}

/// Chats of so many bytes, each another.
#[derive(Debug)]
pub struct Chats {
    caller: usize,
    calls: usize,
    bytes: usize,
    request: Request,
}

/// Two thirds of a prompt are as in the others of one of so many tools.
const TOOLS: u32 = 60;
/// The length of the JSON, and the JSON.
const ROUTE_HEAD: &[u8] = b"\x11\0\0\0{\"model\":\"llama\"}";

// === impl Routes ===

impl Routes {
    /// The calls of one of several callers.
    pub fn new(caller: usize, ids: u32) -> Self {
        Self {
            caller: u32::try_from(caller).unwrap_or(0),
            calls: 0,
            ids,
            request: Request::of("application/x-isthmus-tokens"),
        }
    }
}

impl Caller for Routes {
    fn next_call(&mut self) -> &[u8] {
        self.calls += 1;
        let (caller, call, ids) = (self.caller, self.calls, self.ids);
        let tool = (caller * 31 + call) % TOOLS;
        let own = caller * 1_000_003 + call;
        self.request.write("POST", "/route", |body| {
            body.extend_from_slice(ROUTE_HEAD);
            for at in 0..ids {
                let of = if at < ids / 3 * 2 { tool } else { own };
                let id = (of.wrapping_mul(0x9e37_79b9) ^ at) % 50_000;
                body.extend_from_slice(&id.to_le_bytes());
            }
            Ok(())
        })
    }

    fn check(&self, body: &[u8]) -> Result<()> {
        has(body, br#""worker_address":""#)
    }
}

// === impl Chats ===

impl Chats {
    /// The calls of one of several callers.
    pub fn new(caller: usize, bytes: usize) -> Self {
        Self {
            caller,
            calls: 0,
            bytes,
            request: Request::default(),
        }
    }
}

impl Caller for Chats {
    fn next_call(&mut self) -> &[u8] {
        self.calls += 1;
        let (caller, call, bytes) = (self.caller, self.calls, self.bytes);
        self.request.write("POST", "/process", |body| {
            write!(
                body,
                r#"{{"request_body":{{"model":"llama","messages":[{{"role":"user","content":"Number {caller} {call}. "#
            )?;
            while body.len() < bytes {
                body.extend_from_slice(b"Tell a story about a lighthouse keeper, in plain words. ");
            }
            write!(body, r#""}}]}},"path":"/v1/chat/completions"}}"#)
        })
    }

    fn check(&self, body: &[u8]) -> Result<()> {
        has(body, br#""token_value":""#)
    }
}

fn has(body: &[u8], part: &[u8]) -> Result<()> {
    ensure!(
        memmem::find(body, part).is_some(),
        "refused: {}",
        String::from_utf8_lossy(body)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use processor_api::{ProcessCall, RouteRequest};

    use super::*;

    fn body(request: &[u8]) -> &[u8] {
        let head = memmem::find(request, b"\r\n\r\n").unwrap();
        &request[head + 4..]
    }

    #[test]
    fn a_routed_prompt_has_its_ids() {
        let mut routes = Routes::new(3, 8600);
        let request = RouteRequest::parse_binary(body(routes.next_call()), 10_000).unwrap();
        assert_eq!(request.token_ids.len(), 8600);
    }

    #[test]
    fn a_chat_is_as_long_as_asked() {
        let mut chats = Chats::new(3, 1000);
        let request = body(chats.next_call()).to_vec();
        assert!((1000..1200).contains(&request.len()), "{}", request.len());
        ProcessCall::parse(str::from_utf8(&request).unwrap()).unwrap();
    }
}
