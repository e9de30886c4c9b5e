//! Converters that run more than once, with too little capacity, and in a replayed graph.

use super::*;
use crate::support::dense::upload_values;

/// Two runs are queued without synchronization between them. With too little capacity, nothing is written past it.
#[test]
fn a_converter_runs_again_and_stays_inside() {
    let Some(gpu) = gpu() else { return };
    let (extent, block, group) = (512usize, (32usize, 32usize), 2usize);
    let converter = Converter::blocks_from_dense::<f32>(
        &gpu,
        (extent, extent),
        block,
        group,
        BlockChoice::NonZero,
    )
    .unwrap();
    let stream: Stream = gpu.stream().unwrap();
    let format = Format::BlockGroupCoo { block, group: Some(group) };
    for (seed, capacity) in [(11, 256), (12, 256), (13, 20)] {
        let host = patches::<f32>(extent, extent, seed);
        let source = gpu.upload_dense(&host).unwrap();
        let area = block.0 * block.1;
        let guarded = |len: usize| upload_values(&gpu, &[len], vec![77f32; len]);
        let room = capacity + 8;
        let [out, columns, rows] = [room * area, room, room].map(guarded);
        let raw = RawConversion::default()
            .dense(source.address().unwrap())
            .leading(extent)
            .out_columns(columns.address().unwrap())
            .out_rows(rows.address().unwrap())
            .out_values(out.address().unwrap())
            .capacity(capacity);
        for _ in 0..2 {
            // SAFETY: the tensors have the sizes that the converter requires, and live past the wait below.
            unsafe { converter.run_raw(&raw, stream.raw()).unwrap() };
        }
        stream.synchronize().unwrap();
        let cpu = Context::unchecked_cpu();
        let wanted = cpu
            .blocks_from_dense(&cpu.upload_dense(&host).unwrap(), format, BlockChoice::NonZero)
            .unwrap();
        let wanted = wanted.to_host().unwrap();
        let slots = wanted.slots() / area;
        assert_eq!(*converter.groups().unwrap().last().unwrap() as usize, slots / group);
        let used = slots.min(capacity);
        let (values, guard) = (bits(&out), 77f32.to_bits());
        let expected: Vec<u32> = wanted.values().iter().map(|v| v.to_bits()).collect();
        assert!(values[..used * area] == expected[..used * area]);
        assert!(values[used * area..].iter().all(|&v| v == guard));
        let arrays = wanted.arrays();
        assert_eq!(bits(&columns)[..used], arrays[1].data[..used]);
        assert_eq!(bits(&rows)[..used / group], arrays[0].data[..used / group]);
        assert!(bits(&columns)[used..].iter().all(|&v| v == guard));
    }
}

/// Half of the blocks of a row fit. The values that are written are the entries of these blocks.
#[test]
fn csr_without_room_is_right_as_far_as_it_goes() {
    let Some(gpu) = gpu() else { return };
    let (capacity, width, guard) = (2, 8, 77f32);
    let converter = Converter::blocks_from_csr::<f32>(&gpu, (1, 4 * width), (1, width), 1).unwrap();
    let upload = |values: Vec<f32>| upload_values(&gpu, &[values.len()], values);
    let source = upload((1..=16).map(|v| v as f32).collect());
    // Four entries in each of four blocks; vector loads read the four extra columns past them.
    let columns: Vec<u32> = (0..20).map(|i| i / 4 * 8 + i % 4).collect();
    let columns = words(&gpu, &columns);
    let offsets = words(&gpu, &[0, 16]);
    let outs = [capacity, capacity, capacity * width].map(|len| upload(vec![guard; len + 8]));
    let [out_columns, out_rows, out_values] = outs.each_ref().map(|t| t.address().unwrap());
    let raw = RawConversion::default()
        .values(source.address().unwrap())
        .offsets(offsets.address().unwrap())
        .columns(columns.address().unwrap())
        .out_columns(out_columns)
        .out_rows(out_rows)
        .out_values(out_values)
        .capacity(capacity);
    let stream = gpu.stream().unwrap();
    // SAFETY: the tensors have the sizes that the converter requires, and live past the wait below.
    unsafe { converter.run_raw(&raw, stream.raw()).unwrap() };
    stream.synchronize().unwrap();
    let values = outs[2].to_storage().unwrap();
    let mut wanted = vec![1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0];
    wanted.extend([5.0, 6.0, 7.0, 8.0, 0.0, 0.0, 0.0, 0.0]);
    wanted.extend([guard; 8]);
    assert_eq!(values, wanted);
    assert_eq!(bits(&outs[0])[..capacity], [0, 1]);
    assert_eq!(converter.groups().unwrap(), [0, 4]);
}

/// A captured conversion is replayed over matrices with other blocks.
#[test]
fn a_converter_is_replayed() {
    let Some(gpu) = gpu_alone() else { return };
    let (extent, block) = (256, (16, 16));
    let choice = BlockChoice::TopPerRow(3);
    let converter =
        Converter::blocks_from_dense::<f16>(&gpu, (extent, extent), block, 1, choice).unwrap();
    let mut source = gpu.zeros::<f16>(&[extent, extent]).unwrap();
    let slots = extent / block.0 * 3;
    let values = gpu.zeros::<f16>(&[slots, block.0 * block.1]).unwrap();
    let [columns, rows] = [0, 1].map(|_| gpu.zeros::<f32>(&[slots]).unwrap());
    let raw = RawConversion::default()
        .dense(source.address().unwrap())
        .leading(extent)
        .out_columns(columns.address().unwrap())
        .out_rows(rows.address().unwrap())
        .out_values(values.address().unwrap())
        .capacity(slots);
    let stream = gpu.stream().unwrap();
    // SAFETY: the tensors have the sizes that the converter requires and live past the waits below; replays follow each
    // other.
    let mut graph =
        Graph::capture(stream.raw(), |s| unsafe { converter.run_raw(&raw, s) }).unwrap();
    for seed in [21, 22, 23] {
        let host = patches::<f16>(extent, extent, seed);
        source.write(&host).unwrap();
        // SAFETY: as for the capture.
        unsafe { graph.launch(stream.raw()) }.unwrap();
        stream.synchronize().unwrap();
        let cpu = Context::unchecked_cpu();
        let dense = cpu.upload_dense(&host).unwrap();
        let wanted = cpu.blocks_from_dense(&dense, Format::BlockCoo { block }, choice);
        let wanted = wanted.unwrap().to_host().unwrap();
        let used = wanted.values().len() / (block.0 * block.1);
        assert_eq!(bits(&columns)[..used], *wanted.arrays()[1].data);
        let found = values.to_storage().unwrap();
        let bytes = |v: &[f16]| bytemuck::cast_slice::<f16, u8>(v).to_vec();
        let found = bytes(&found[..wanted.values().len()]);
        assert!(found == bytes(wanted.values()), "{seed}");
    }
}
