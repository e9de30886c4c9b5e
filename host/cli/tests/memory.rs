//! Memory and time of the command on files that declare large sizes, and output files of a command that is killed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::{fails, folder, program, text};

/// Returns what `inspect` prints about the file. On Linux, the kernel refuses more than `bytes` of address space in
/// addition to the stacks of the threads, and more than 5 s of CPU time. CPU time, unlike elapsed time, does not depend
/// on the load of the machine.
fn inspect(file: &Path, bytes: u64) -> String {
    let mut command = match cfg!(target_os = "linux") {
        // A Rayon thread has a stack of 2 MiB and an arena of the allocator. Both are mostly untouched, so the limit
        // applies to data.
        true => {
            let mut shell = Command::new("sh");
            shell
                .arg("-c")
                .arg(format!("ulimit -d {} && ulimit -t 5 && exec \"$@\"", bytes / 1024));
            shell.arg("sh").arg(program());
            shell
        }
        false => Command::new(program()),
    };
    command.env("RAYON_NUM_THREADS", "2").arg("inspect").arg(file);
    let start = Instant::now();
    let output = command.output().expect("the command starts");
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "{out}");
    out
}

#[test]
fn many_rows_and_few_entries_take_little() {
    let folder = folder("memory");
    let file = folder.join("rows.mtx");
    for (rows, cols) in [(u32::MAX, 3), (3, u32::MAX), (u32::MAX, u32::MAX)] {
        let text =
            format!("%%MatrixMarket matrix coordinate real general\n{rows} {cols} 1\n2 2 1\n");
        fs::write(&file, text).expect("a file");
        let out = inspect(&file, 64_000_000);
        let words = [
            format!("{rows} x {cols}, 1 entries"),
            format!("1 of {rows} non-empty, 0 to 1 entries"),
            "not counted".to_string(),
        ];
        assert!(words.iter().all(|word| out.contains(word)), "{out}");
    }
    // This many rows and columns can be counted within the memory limit.
    let text = "%%MatrixMarket matrix coordinate real general\n500000 499000 1\n2 2 1\n";
    fs::write(&file, text).expect("a file");
    let out = inspect(&file, 64_000_000);
    assert!(out.contains("formats") && !out.contains("not counted"), "{out}");
    let (rows, npz) = (file.display().to_string(), folder.join("rows.npz"));
    let text = "%%MatrixMarket matrix coordinate real general\n4294967295 2 1\n2 2 1\n";
    fs::write(&file, text).expect("a file");
    let error = fails(&["convert", &rows, &folder.join("rows.smtx").display().to_string()]);
    assert!(error.contains("17179869180 bytes, over the limit of 64000256"), "{error}");
    super::works(&["convert", &rows, &npz.display().to_string()]);
    assert!(inspect(&npz, 64_000_000).contains("not counted"));
}

#[test]
fn tensors_of_nothing_take_little() {
    let folder = folder("memory-tensors");
    let file = folder.join("empty.safetensors");
    for (rows, cols) in [(0, u32::MAX), (u32::MAX, 0)] {
        let header =
            format!(r#"{{"w":{{"dtype":"F32","shape":[{rows},{cols}],"data_offsets":[0,0]}}}}"#);
        let length = (header.len() as u64).to_le_bytes();
        fs::write(&file, [&length[..], header.as_bytes()].concat()).expect("a file");
        let one = folder.join("empty.safetensors:w");
        for file in [&file, &one] {
            let out = inspect(file, 64_000_000);
            assert!(
                out.contains("not counted: arrays of all rows and columns take 103079215080 bytes"),
                "{out}"
            );
        }
    }
    let npz = folder.join("w.npz").display().to_string();
    // The last file has only rows.
    let error = fails(&["convert", &file.display().to_string(), &npz]);
    assert!(error.contains("17179869180 bytes, over the limit of 64000000"), "{error}");
}

#[test]
fn memory_is_an_option() {
    let folder = folder("memory-option");
    let file = folder.join("small.mtx").display().to_string();
    let text = "%%MatrixMarket matrix coordinate real general\n500000 499000 1\n2 2 1\n";
    fs::write(&file, text).expect("a file");
    let out = super::works(&["inspect", &file, "--memory", "1MB"]);
    assert!(out.contains("375000 are left"), "{out}");
    let wrong = super::run(&["inspect", &file, "--memory", "much"]);
    assert!(!wrong.status.success());
}

/// If the command is killed at any time, the output file contains the old or the new content.
#[test]
fn a_killed_command_leaves_no_half_of_a_file() {
    let folder = folder("killed");
    let (from, to) = (folder.join("from.mtx"), folder.join("to.mtx"));
    const ENTRIES: usize = 200_000;
    let mut matrix =
        format!("%%MatrixMarket matrix coordinate real general\n1 {ENTRIES} {ENTRIES}\n");
    (1..=ENTRIES).for_each(|at| matrix.push_str(&format!("1 {at} 0.{at}\n")));
    fs::write(&from, matrix).expect("a file");
    let start = Instant::now();
    let convert = || {
        let mut command = Command::new(program());
        command.arg("convert").arg(&from).arg(&to).stdout(Stdio::null());
        command.spawn().expect("the command starts")
    };
    convert().wait().expect("it ends");
    let whole = fs::read(&to).expect("the output");
    let took = start.elapsed();
    for at in 0..24 {
        fs::write(&to, "old").expect("a file");
        let mut command = convert();
        thread::sleep(took * at / 20);
        // The command may have ended already.
        let _ = command.kill();
        command.wait().expect("it ends");
        let found = fs::read(&to).expect("the output");
        assert!(found == b"old" || found == whole, "{} bytes", found.len());
    }
}
