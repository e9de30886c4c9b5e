//! Tests of rank claims, addresses and texts, on one rank at a time.

use super::super::token::random_bytes;
use super::*;

const LIMIT: Duration = Duration::from_secs(10);

fn id() -> Id {
    Id {
        host: "localhost".into(),
        port: 1,
        secret: Secret::Given(Token::of_text("a secret of this test")),
    }
}

fn meeting(id: &Id, rank: usize, size: usize) -> Meeting<'_> {
    Meeting { id, rank, size, end: end_of(LIMIT), limit: LIMIT }
}

#[test]
fn a_second_claim_of_a_rank_is_refused_and_the_first_link_stays() {
    let (id, token) = (id(), Token(random_bytes().unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Rank 1 of 4 accepts ranks 2 and 3; other claims are rejected.
    let claim = |rank: u32, size: u32| {
        let stream = TcpStream::connect(address).unwrap();
        let hello = Hello { rank, size, address };
        handshake::connecting(&stream, token, hello, LIMIT).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        (read_text(&stream, 1000).unwrap(), stream)
    };
    let mut links = [None, None, None, None];
    let first = thread::scope(|scope| {
        let own = meeting(&id, 1, 4);
        let links = &mut links;
        let accepting = scope.spawn(move || own.accept_later(&[listener], token, links));
        let (text, first) = claim(2, 4);
        assert_eq!(text, "");
        for (rank, size, wanted) in [
            (2, 4, "!2 is there twice"),
            (1, 4, "!1 is there twice"),
            (0, 4, "!0 is there twice"),
            (4, 4, "!4 is not below the number of ranks, 4"),
            (3, 5, "!3 counts 5 ranks where rank 1 counts 4"),
        ] {
            assert_eq!(claim(rank, size).0, wanted);
        }
        let (text, _last) = claim(3, 4);
        assert_eq!(text, "");
        accepting.join().unwrap().unwrap();
        first
    });
    let kept = links[2].as_ref().unwrap().peer_addr().unwrap();
    assert_eq!(kept, first.local_addr().unwrap());
}

#[test]
fn all_addresses_of_a_host_are_tried() {
    let (id, token) = (id(), Token::of_text("a secret of this test"));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // Programs outside this group answer at two more addresses; one of them closes the connection immediately.
    let strangers = ["127.0.0.1:0", "127.0.0.1:0"].map(|at| TcpListener::bind(at).unwrap());
    let other = strangers[0].try_clone().unwrap();
    thread::spawn(move || {
        let (stream, _) = other.accept()?;
        handshake::listening(&stream, Token::of_text("another one"))
    });
    let gone = strangers[1].try_clone().unwrap();
    thread::spawn(move || gone.accept().map(drop));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap();
    let addresses = || {
        let [other, gone] = [0, 1].map(|i| strangers[i].local_addr());
        Ok(vec![closed, other?, gone?, own])
    };
    let accepted = thread::spawn(move || handshake::listening(&listener.accept()?.0, token));
    let hello = Hello { rank: 1, size: 2, address: own };
    let own_meeting = meeting(&id, 1, 2);
    let found = own_meeting.connect(0, ("here", &addresses), &|| Ok(Some(token)), &|_| Ok(hello));
    let (stream, _) = found.unwrap();
    assert_eq!(stream.peer_addr().unwrap(), own);
    assert_eq!(accepted.join().unwrap().unwrap(), Some(hello));
}

#[test]
fn texts_are_bounded() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let from = listener.accept().unwrap().0;
    write_text(&to, "twelve bytes").unwrap();
    assert_eq!(read_text(&from, 12).unwrap(), "twelve bytes");
    write_text(&to, "twelve bytes").unwrap();
    let error = read_text(&from, 11).unwrap_err().to_string();
    assert_eq!(error, "it sent a text of 12 bytes, and the limit is 11");
}
