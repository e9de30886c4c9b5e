//! The guide shows the output that the command prints.

use std::fs;
use std::path::Path;

use crate::works;

/// Commands in the blocks of a page, each with the lines after it.
fn shown(page: &str) -> Vec<(&str, String)> {
    let mut found: Vec<(&str, String)> = Vec::new();
    for block in page.split("```text\n").skip(1) {
        let block = block.split("```").next().unwrap_or("");
        let mut inside = false;
        for line in block.lines() {
            match (line.strip_prefix("$ einsparse "), found.last_mut()) {
                (Some(command), _) => {
                    found.push((command, String::new()));
                    inside = true;
                }
                (None, Some((_, lines))) if inside => *lines += &format!("{line}\n"),
                _ => {}
            }
        }
    }
    found
}

#[test]
fn formats_are_stored_as_the_guide_shows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/formats.md");
    let page = fs::read_to_string(path).expect("the page");
    let shown = shown(&page);
    assert!(shown.len() >= 8, "{} commands on the page", shown.len());
    for (command, lines) in shown {
        let arguments: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(lines, works(&arguments), "einsparse {command}");
    }
}

#[test]
fn commands_are_read_with_their_lines() {
    let page = "a\n```text\n$ einsparse x 1\none\ntwo\n$ einsparse y\n```\n```text\nno\n```\n";
    let wanted = [("x 1", "one\ntwo\n".to_owned()), ("y", String::new())];
    assert_eq!(shown(page), wanted);
}
