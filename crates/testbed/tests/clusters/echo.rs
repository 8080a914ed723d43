//! The program that runs in the pods: a tiny HTTP server that tells what a pod sees.
//!
//! `/` its name, `/env/NAME` a variable, `/file/PATH` a file, `/fetch/IP:PORT` what it gets from another, `/exit` ends it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// The first argument that makes this program the server.
pub(crate) const ARGUMENT: &str = "serve-echo";

pub(crate) fn serve() {
    let listener = TcpListener::bind("0.0.0.0:8080").expect("a pod has all its ports to itself");
    for client in listener.incoming().flatten() {
        std::thread::spawn(move || answer(client));
    }
}

fn answer(mut client: TcpStream) {
    let mut line = String::new();
    if BufReader::new(&client).read_line(&mut line).is_err() {
        return;
    }
    let path = line.split(' ').nth(1).unwrap_or("/");
    let (what, argument) = path
        .trim_start_matches('/')
        .split_once('/')
        .unwrap_or((path.trim_start_matches('/'), ""));
    let variable =
        |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let found = match what {
        "" => variable("HOSTNAME"),
        "env" => variable(argument),
        "file" => std::fs::read_to_string(format!("/{argument}")).ok(),
        "fetch" => Some(fetch(argument)),
        "exit" => end(),
        _ => None,
    };
    let (status, body) = found.map_or(("404 Not Found", String::new()), |body| ("200 OK", body));
    let length = body.len();
    let _gone = write!(
        client,
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
}

#[expect(clippy::exit, reason = "the test asks for exactly this")]
fn end() -> ! {
    std::process::exit(7)
}

/// `timeout`, `refused: …` or the body.
fn fetch(address: &str) -> String {
    let Ok(address) = address.parse() else {
        return "no address".to_owned();
    };
    let mut server = match TcpStream::connect_timeout(&address, Duration::from_secs(2)) {
        Ok(server) => server,
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return "timeout".to_owned(),
        Err(error) => return format!("refused: {error}"),
    };
    let mut answer = String::new();
    let asked = server.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    match asked.and_then(|()| server.read_to_string(&mut answer)) {
        Ok(_) => answer.rsplit("\r\n").next().unwrap_or_default().to_owned(),
        Err(error) => format!("broken: {error}"),
    }
}
