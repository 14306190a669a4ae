//! Answer to S3 clients while a lake has not answered yet: a clean 503, so that they come back by themselves.

use std::time::Duration;

use forebay_net::{Listener, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// One client gets at most so long; they are served one after another.
const CLIENT_TIME_MAX: Duration = Duration::from_millis(500);

const BODY: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>SlowDown</Code>\
    <Message>The node is waiting for its lake. Please try again.</Message></Error>";

/// Takes one connection, answers it and closes it.
pub(crate) async fn answer_busy(listener: &mut Listener) {
    match listener.accept().await {
        // A client that is too slow or gone is no reason to do anything.
        Ok(stream) => drop(tokio::time::timeout(CLIENT_TIME_MAX, answer(stream)).await),
        // Usually too many open files: a pause lets others close theirs.
        Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
    }
}

async fn answer(mut stream: Stream) -> std::io::Result<()> {
    let mut head = [0; 4096];
    let _ = stream.read(&mut head).await?;
    let bytes = BODY.len();
    let text = format!(
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-type: application/xml\r\n\
         content-length: {bytes}\r\nconnection: close\r\n\r\n{BODY}"
    );
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}
