//! Kernels of the family `sddmm`: rows of the kernel table.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_sddmm {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            sddmm {
                "sampled" SampledParams Sampled {
                    sampled_f16_64 F16, sampled_bf16_64 Bf16: Block, Sampled<WINDOW_CHUNKS, WindowOf<64, BOTH_ROWS>>;
                    sampled_f16_64t F16, sampled_bf16_64t Bf16: Block, Sampled<WINDOW_CHUNKS, WindowOf<64, BOTH_COLUMNS>>;
                    sampled_f16_32 F16, sampled_bf16_32 Bf16: Block, Sampled<WINDOW_CHUNKS, WindowOf<32, BOTH_ROWS>>;
                    sampled_f16_32t F16, sampled_bf16_32t Bf16: Block, Sampled<WINDOW_CHUNKS, WindowOf<32, BOTH_COLUMNS>>;
                    sampled_f16_16 F16, sampled_bf16_16 Bf16: Block, Sampled<WINDOW_CHUNKS, WindowOf<16, BOTH_ROWS>>;
                    sampled_f16_16t F16, sampled_bf16_16t Bf16: Block, Sampled<WINDOW_CHUNKS, WindowOf<16, BOTH_COLUMNS>>;
                    sampled_mma_f16_64 F16, sampled_mma_bf16_64 Bf16: Block, Sampled<2, WindowOf<64, BOTH_ROWS, MmaSync, CpAsync>>;
                    sampled_mma_f16_64_wide F16, sampled_mma_bf16_64_wide Bf16: Block, Sampled<2, WindowOf<64, BOTH_ROWS, MmaSync, CpAsyncWide>>;
                    sampled_mma_f16_64t F16, sampled_mma_bf16_64t Bf16: Block, Sampled<2, WindowOf<64, BOTH_COLUMNS, MmaQuarters, CpAsync>>;
                    sampled_mma_f16_64t_wide F16, sampled_mma_bf16_64t_wide Bf16: Block, Sampled<2, WindowOf<64, BOTH_COLUMNS, MmaQuarters, CpAsyncWide>>;
                    sampled_mma_f16_16 F16, sampled_mma_bf16_16 Bf16: Block, Sampled<2, WindowOf<16, BOTH_ROWS, MmaSync, CpAsync>>;
                    sampled_mma_f16_16t F16, sampled_mma_bf16_16t Bf16: Block, Sampled<2, WindowOf<16, BOTH_COLUMNS, MmaQuarters, CpAsync>>;
                }
                "sddmm" SddmmParams Sampled {
                    sddmm_csr_f32_k32 F32: Csr, Dots<4, 1, SegmentOf<8, 8, 5>>;
                    sddmm_csr_f32_k64 F32: Csr, Dots<4, 2, SegmentOf<8, 8, 4>>;
                    sddmm_csr_f32_k128 F32: Csr, Dots<4, 2, SegmentOf<16, 8, 4>>;
                    sddmm_csr_f32_k256 F32: Csr, Dots<4, 2, SegmentOf<32, 8, 4>>;
                    sddmm_csr_f64_k16 F64: Csr, Dots<2, 1, SegmentOf<8, 8, 4>>;
                    sddmm_csr_f64_k64 F64: Csr, Dots<2, 2, SegmentOf<16, 4, 4>>;
                    sddmm_csr_f64_any32 F64: Csr, Dots<1, 4, SegmentOf<8, 4, 3>>;
                    sddmm_csr_f16_k64 F16, sddmm_csr_bf16_k64 Bf16: Csr, Dots<8, 1, SegmentOf<8, 8, 5>>;
                    sddmm_csr_f16_k128 F16, sddmm_csr_bf16_k128 Bf16: Csr, Dots<8, 1, SegmentOf<16, 8, 5>>;
                    sddmm_csr_f16_k256 F16, sddmm_csr_bf16_k256 Bf16: Csr, Dots<8, 1, SegmentOf<32, 8, 5>>;
                    sddmm_csr_f32_any32 F32, sddmm_csr_f16_any32 F16, sddmm_csr_bf16_any32 Bf16: Csr, Dots<1, 4, SegmentOf<8, 4, 5>>;
                }
                "sddmm" SddmmParams SampledNarrow {
                    sddmm_csr_int8_k64 Int8: Csr, Dots<8, 1, SegmentOf<8, 8, 5>>;
                    sddmm_csr_int8_k128 Int8: Csr, Dots<16, 1, SegmentOf<8, 8, 5>>;
                    sddmm_csr_int8_k256 Int8: Csr, Dots<16, 1, SegmentOf<16, 8, 5>>;
                    sddmm_csr_int8_any32 Int8: Csr, Dots<1, 4, SegmentOf<8, 4, 5>>;
                }
                "sddmm_staged" SddmmStagedParams Sampled {
                    sddmm_staged_f32_k64 F32: Csr, StagedDots<2, 4, ShelfOf<8>>;
                    sddmm_staged_f32_k128 F32: Csr, StagedDots<2, 4, ShelfOf<16>>;
                    sddmm_staged_f32_k256 F32: Csr, StagedDots<2, 4, ShelfOf<32>>;
                    sddmm_staged_f32_k512 F32: Csr, StagedDots<4, 4, ShelfOf<32>>;
                    sddmm_staged_f32_k64_99k F32: Csr, StagedDots<2, 4, ShelfOf<8, 99>>;
                    sddmm_staged_f32_k128_99k F32: Csr, StagedDots<2, 4, ShelfOf<16, 99>>;
                    sddmm_staged_f32_k256_99k F32: Csr, StagedDots<2, 4, ShelfOf<32, 99>>;
                    sddmm_staged_f32_k512_99k F32: Csr, StagedDots<4, 4, ShelfOf<32, 99>>;
                }
                "sddmm_tiles" SddmmTilesParams Sampled {
                    sddmm_tiles_f16_n256 F16, sddmm_tiles_bf16_n256 Bf16: Csr, PickTile<4, PickOf<BOTH_ROWS>>;
                    sddmm_tiles_f16_n128 F16, sddmm_tiles_bf16_n128 Bf16: Csr, PickTile<2, PickOf<BOTH_ROWS>>;
                    sddmm_tiles_f16_n64 F16, sddmm_tiles_bf16_n64 Bf16: Csr, PickTile<1, PickOf<BOTH_ROWS>>;
                    sddmm_tiles_f16_n256t F16, sddmm_tiles_bf16_n256t Bf16: Csr, PickTile<4, PickOf<BOTH_COLUMNS>>;
                    sddmm_tiles_f16_n64t F16, sddmm_tiles_bf16_n64t Bf16: Csr, PickTile<1, PickOf<BOTH_COLUMNS>>;
                    sddmm_tiles_tf32_n128 Tf32: Csr, PickTile<2, PickOf<BOTH_ROWS, 4>>;
                    sddmm_tiles_tf32_n64 Tf32: Csr, PickTile<1, PickOf<BOTH_ROWS, 4>>;
                    sddmm_tiles_mma_f16_n128 F16, sddmm_tiles_mma_bf16_n128 Bf16: Csr, PickTile<2, PickOf<BOTH_ROWS, 2, MmaSync, CpAsync>>;
                    sddmm_tiles_mma_f16_n128_wide F16, sddmm_tiles_mma_bf16_n128_wide Bf16: Csr, PickTile<2, PickOf<BOTH_ROWS, 2, MmaSync, CpAsyncWide>>;
                    sddmm_tiles_mma_f16_n128t F16, sddmm_tiles_mma_bf16_n128t Bf16: Csr, PickTile<2, PickOf<BOTH_COLUMNS, 2, MmaSync, CpAsync>>;
                    sddmm_tiles_mma_f16_n128t_wide F16, sddmm_tiles_mma_bf16_n128t_wide Bf16: Csr, PickTile<2, PickOf<BOTH_COLUMNS, 2, MmaSync, CpAsyncWide>>;
                    sddmm_tiles_mma_f16_n64 F16, sddmm_tiles_mma_bf16_n64 Bf16: Csr, PickTile<1, PickOf<BOTH_ROWS, 2, MmaSync, CpAsync>>;
                    sddmm_tiles_mma_f16_n64t F16, sddmm_tiles_mma_bf16_n64t Bf16: Csr, PickTile<1, PickOf<BOTH_COLUMNS, 2, MmaSync, CpAsync>>;
                    sddmm_tiles_mma_tf32_n64 Tf32: Csr, PickTile<1, PickOf<BOTH_ROWS, 4, MmaSync, CpAsync>>;
                }
                "pit_sampled" PitSampledParams Dynamic {
                    pit_f16_sampled F16, pit_bf16_sampled Bf16: Block, PitSampled;
                    pit_f16_sampled_mma F16, pit_bf16_sampled_mma Bf16: Block, PitSampled<MmaSync, CpAsync>;
                }
            }
        }
    };
}
