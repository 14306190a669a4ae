//! Conditional deletes.

mod fixture;

use fixture::Server;

#[tokio::test]
async fn a_delete_with_the_right_etag_removes() {
    let server = Server::start().await;
    let put = server.put("a", b"one").await;
    let etag = put.get("etag").unwrap();
    let delete = || server.call("DELETE", "/bucket/a").header("if-match", etag);
    assert_eq!(delete().send().await.status, 204);
    server.get("a").await.expect_error(404, "NoSuchKey");
    delete().send().await.expect_error(404, "NoSuchKey");
}

#[tokio::test]
async fn a_delete_with_an_old_etag_leaves_the_newer_object() {
    let server = Server::start().await;
    let old = server.put("a", b"one").await;
    server.put("a", b"two").await;
    server
        .call("DELETE", "/bucket/a")
        .header("if-match", old.get("etag").unwrap())
        .send()
        .await
        .expect_error(412, "PreconditionFailed");
    assert_eq!(server.get("a").await.body, b"two");
}

#[tokio::test]
async fn a_delete_of_anything_needs_something() {
    let server = Server::start().await;
    let delete = || server.call("DELETE", "/bucket/a").header("if-match", "*");
    delete().send().await.expect_error(404, "NoSuchKey");
    server.put("a", b"one").await;
    assert_eq!(delete().send().await.status, 204);
    server.get("a").await.expect_error(404, "NoSuchKey");
}

#[tokio::test]
async fn times_and_sizes_are_no_conditions_here() {
    let server = Server::start().await;
    server.put("a", b"one").await;
    server
        .call("DELETE", "/bucket/a")
        .header("x-amz-if-match-size", "3")
        .send()
        .await
        .expect_error(501, "NotImplemented");
    assert_eq!(server.get("a").await.status, 200);
}

#[tokio::test]
async fn many_deletes_have_each_their_own_condition() {
    let server = Server::start().await;
    let etag = |reply: &fixture::Reply| reply.get("etag").unwrap().trim_matches('"').to_owned();
    let (right, wrong) = (
        etag(&server.put("right", b"one").await),
        etag(&server.put("wrong", b"two").await),
    );
    server.put("wrong", b"three").await;
    server.put("plain", b"x").await;
    let body = format!(
        "<Delete><Object><Key>right</Key><ETag>{right}</ETag></Object>\
         <Object><Key>wrong</Key><ETag>\"{wrong}\"</ETag></Object>\
         <Object><Key>absent</Key><ETag>{right}</ETag></Object>\
         <Object><Key>plain</Key></Object></Delete>"
    );
    let reply = server
        .call("POST", "/bucket?delete")
        .body(body.as_bytes())
        .send()
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(
        reply.elements("Code"),
        ["PreconditionFailed", "NoSuchKey"],
        "{}",
        reply.text()
    );
    assert_eq!(
        reply.elements("Key"),
        ["right", "plain", "wrong", "absent"],
        "{}",
        reply.text()
    );
    assert_eq!(server.get("wrong").await.body, b"three");
    server.get("right").await.expect_error(404, "NoSuchKey");
}
