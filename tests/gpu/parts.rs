//! Parts of tensors that the host writes and reads: only their bytes are copied.

use std::time::Instant;

use einsparse::formats::Dense;

use crate::support::{gpu, gpu_alone, small};

#[test]
fn parts_are_written_and_read_where_they_lie() {
    let Some(gpu) = gpu() else { return };
    let numbers = |shape: [usize; 2], first: usize| {
        let at = |i: &[usize]| (first + i[0] * shape[1] + i[1]) as f32;
        Dense::from_fn(shape, at).unwrap()
    };
    let mut wanted = numbers([5, 12], 0);
    let mut whole = gpu.upload_dense(&wanted).unwrap();
    let part = numbers([5, 3], 100);
    for (columns, rows) in [(2..5, 0..5), (0..12, 1..3), (11..12, 0..1), (4..4, 0..5)] {
        let (height, width) = (rows.len(), columns.len());
        let own = Dense::from_fn([height, width], |i| (100 + i[0] * 16 + i[1]) as f32).unwrap();
        let mut of_rows = whole.part_mut(rows.start * 12, &[height, 12]).unwrap();
        let mut view = of_rows.columns_mut(columns.clone()).unwrap();
        view.write(&own).unwrap();
        assert!(view.to_dense().unwrap() == own, "{rows:?} {columns:?}");
        drop(view);
        drop(of_rows);
        wanted =
            Dense::from_fn([5, 12], |i| match rows.contains(&i[0]) && columns.contains(&i[1]) {
                true => own.get(&[i[0] - rows.start, i[1] - columns.start]).unwrap(),
                false => wanted.get(i).unwrap(),
            })
            .unwrap();
        assert!(whole.to_dense().unwrap() == wanted, "{rows:?} {columns:?}");
    }
    // Rows with gaps. Memory may end after the last row.
    let mut strided = gpu.upload_strided(&part, 7, -1.0).unwrap();
    strided.write(&numbers([5, 3], 200)).unwrap();
    assert_eq!(strided.to_dense().unwrap(), numbers([5, 3], 200));
    let between = strided.to_storage().unwrap();
    assert!(between.chunks(7).all(|row| row[3..] == [-1.0; 4]));
}

/// Writing a part of a tensor that is a thousand times larger takes less time than writing the whole.
#[test]
fn a_part_alone_is_copied() {
    let Some(gpu) = gpu_alone() else { return };
    let [rows, columns] = [1 << 12, if small() { 1 << 10 } else { 1 << 14 }];
    let all = Dense::from_fn([rows, columns], |_| 1.0f32).unwrap();
    let mut whole = gpu.upload_dense(&all).unwrap();
    let two = Dense::from_fn([rows, 2], |_| 2.0f32).unwrap();
    let time = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    whole.write(&all).unwrap();
    let of_all = time(&mut || whole.write(&all).unwrap());
    let mut part = whole.columns_mut(6..8).unwrap();
    part.write(&two).unwrap();
    let of_parts = time(&mut || (0..8).for_each(|_| part.write(&two).unwrap()));
    let of_reads = time(&mut || (0..8).for_each(|_| assert!(part.to_dense().unwrap() == two)));
    drop(part);
    let found = whole.part(0, &[1, columns]).unwrap();
    assert_eq!(found.shape(), [1, columns]);
    if !small() {
        assert!(of_parts < of_all, "eight parts {of_parts:?}, the whole {of_all:?}");
        assert!(of_reads < of_all, "eight parts {of_reads:?}, the whole {of_all:?}");
    }
}
