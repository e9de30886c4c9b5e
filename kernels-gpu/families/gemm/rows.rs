//! Kernels of the family `gemm`: rows of the kernel table.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_gemm {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            gemm {
                block "block" SpmmParams Product {
                    block_f16_b16: Block, F16, MmaTile<16, 1, 4, true>;
                    block_f16_b32: Block, F16, MmaTile<32, 2, 4, true>;
                    block_f16_b64: Block, F16, MmaTile<64, 2, 8, true>;
                    block_f16_b16_any: Block, F16, MmaTile<16, 1, 4, false>;
                    block_f16_b32_any: Block, F16, MmaTile<32, 2, 4, false>;
                    block_f16_b64_any: Block, F16, MmaTile<64, 2, 8, false>;
                    block_bf16_b16: Block, Bf16, MmaTile<16, 1, 4, true>;
                    block_bf16_b32: Block, Bf16, MmaTile<32, 2, 4, true>;
                    block_bf16_b64: Block, Bf16, MmaTile<64, 2, 8, true>;
                    block_bf16_b16_any: Block, Bf16, MmaTile<16, 1, 4, false>;
                    block_bf16_b32_any: Block, Bf16, MmaTile<32, 2, 4, false>;
                    block_bf16_b64_any: Block, Bf16, MmaTile<64, 2, 8, false>;
                    block_tf32_b16: Block, Tf32, MmaTile<16, 1, 4, true>;
                    block_tf32_b32: Block, Tf32, MmaTile<32, 2, 4, true>;
                    block_tf32_b64: Block, Tf32, MmaTile<64, 2, 8, true>;
                    block_tf32_b16_any: Block, Tf32, MmaTile<16, 1, 4, false>;
                    block_tf32_b32_any: Block, Tf32, MmaTile<32, 2, 4, false>;
                    block_tf32_b64_any: Block, Tf32, MmaTile<64, 2, 8, false>;
                }
                wgmma "wgmma" WgmmaParams Product {
                    wgmma_f16_64x64_n256: Block, F16, Panel<4, PanelOf<64, 64, PLAIN>>;
                    wgmma_f16_64x64_n128: Block, F16, Panel<2, PanelOf<64, 64, PLAIN>>;
                    wgmma_f16_64x32_n256: Block, F16, Panel<4, PanelOf<64, 32, IN_REGISTERS>>;
                    wgmma_f16_64x32_n128: Block, F16, Panel<2, PanelOf<64, 32, IN_REGISTERS>>;
                    wgmma_f16_32x32_n256: Block, F16, Panel<4, PanelOf<32, 32, IN_REGISTERS>>;
                    wgmma_f16_32x32_n128: Block, F16, Panel<2, PanelOf<32, 32, IN_REGISTERS>>;
                    wgmma_f16_16x32_n256: Block, F16, Panel<4, PanelOf<16, 32, IN_REGISTERS>>;
                    wgmma_f16_16x32_n128: Block, F16, Panel<2, PanelOf<16, 32, IN_REGISTERS>>;
                    wgmma_f16_16x16_n256: Block, F16, Panel<4, PanelOf<16, 16, IN_REGISTERS>>;
                    wgmma_f16_16x16_n128: Block, F16, Panel<2, PanelOf<16, 16, IN_REGISTERS>>;
                    wgmma_f16_64x1_n256: Block, F16, Panel<4, PanelOf<64, 1, COLUMN_PIECES>>;
                    wgmma_f16_32x1_n256: Block, F16, Panel<4, PanelOf<32, 1, COLUMN_PIECES>>;
                    wgmma_f16_1x64_n256: Block, F16, Panel<4, PanelOf<1, 64, PLAIN>>;
                    wgmma_bf16_64x64_n256: Block, Bf16, Panel<4, PanelOf<64, 64, PLAIN>>;
                    wgmma_bf16_64x64_n128: Block, Bf16, Panel<2, PanelOf<64, 64, PLAIN>>;
                    wgmma_bf16_64x32_n256: Block, Bf16, Panel<4, PanelOf<64, 32, IN_REGISTERS>>;
                    wgmma_bf16_64x32_n128: Block, Bf16, Panel<2, PanelOf<64, 32, IN_REGISTERS>>;
                    wgmma_bf16_32x32_n256: Block, Bf16, Panel<4, PanelOf<32, 32, IN_REGISTERS>>;
                    wgmma_bf16_32x32_n128: Block, Bf16, Panel<2, PanelOf<32, 32, IN_REGISTERS>>;
                    wgmma_bf16_16x32_n256: Block, Bf16, Panel<4, PanelOf<16, 32, IN_REGISTERS>>;
                    wgmma_bf16_16x32_n128: Block, Bf16, Panel<2, PanelOf<16, 32, IN_REGISTERS>>;
                    wgmma_bf16_16x16_n256: Block, Bf16, Panel<4, PanelOf<16, 16, IN_REGISTERS>>;
                    wgmma_bf16_16x16_n128: Block, Bf16, Panel<2, PanelOf<16, 16, IN_REGISTERS>>;
                    wgmma_bf16_64x1_n256: Block, Bf16, Panel<4, PanelOf<64, 1, COLUMN_PIECES>>;
                    wgmma_bf16_32x1_n256: Block, Bf16, Panel<4, PanelOf<32, 1, COLUMN_PIECES>>;
                    wgmma_bf16_1x64_n256: Block, Bf16, Panel<4, PanelOf<1, 64, PLAIN>>;
                    wgmma_f16_64x64t_n256: Block, F16, Panel<4, PanelOf<64, 64, A_COLUMNS>>;
                    wgmma_f16_64x64t_n128: Block, F16, Panel<2, PanelOf<64, 64, A_COLUMNS>>;
                    wgmma_f16_32x32t_n256: Block, F16, Panel<4, PanelOf<32, 32, COLUMN_PIECES>>;
                    wgmma_f16_16x16t_n256: Block, F16, Panel<4, PanelOf<16, 16, COLUMN_PIECES>>;
                    wgmma_bf16_64x64t_n256: Block, Bf16, Panel<4, PanelOf<64, 64, A_COLUMNS>>;
                    wgmma_bf16_64x64t_n128: Block, Bf16, Panel<2, PanelOf<64, 64, A_COLUMNS>>;
                    wgmma_bf16_32x32t_n256: Block, Bf16, Panel<4, PanelOf<32, 32, COLUMN_PIECES>>;
                    wgmma_bf16_16x16t_n256: Block, Bf16, Panel<4, PanelOf<16, 16, COLUMN_PIECES>>;
                    wgmma_f16_64x64_nk_n256: Block, F16, Panel<4, PanelOf<64, 64, B_COLUMNS>>;
                    wgmma_f16_64x64_left_n256: Block, F16, Panel<4, PanelOf<64, 64, ON_THE_LEFT>>;
                    wgmma_f16_64x64t_left_n256: Block, F16, Panel<4, PanelOf<64, 64, { A_COLUMNS | ON_THE_LEFT }>>;
                    wgmma_f16_64x64_nk_n128: Block, F16, Panel<2, PanelOf<64, 64, B_COLUMNS>>;
                    wgmma_f16_64x64_left_n128: Block, F16, Panel<2, PanelOf<64, 64, ON_THE_LEFT>>;
                    wgmma_f16_64x64t_left_n128: Block, F16, Panel<2, PanelOf<64, 64, { A_COLUMNS | ON_THE_LEFT }>>;
                    wgmma_f16_32x32_left_n256: Block, F16, Panel<4, PanelOf<32, 32, { IN_REGISTERS | ON_THE_LEFT }>>;
                    wgmma_f16_32x32t_left_n256: Block, F16, Panel<4, PanelOf<32, 32, { COLUMN_PIECES | ON_THE_LEFT }>>;
                    wgmma_f16_16x16_left_n256: Block, F16, Panel<4, PanelOf<16, 16, { IN_REGISTERS | ON_THE_LEFT }>>;
                    wgmma_f16_16x16t_left_n256: Block, F16, Panel<4, PanelOf<16, 16, { COLUMN_PIECES | ON_THE_LEFT }>>;
                    wgmma_bf16_64x64_nk_n256: Block, Bf16, Panel<4, PanelOf<64, 64, B_COLUMNS>>;
                    wgmma_bf16_64x64_left_n256: Block, Bf16, Panel<4, PanelOf<64, 64, ON_THE_LEFT>>;
                    wgmma_bf16_64x64t_left_n256: Block, Bf16, Panel<4, PanelOf<64, 64, { A_COLUMNS | ON_THE_LEFT }>>;
                    wgmma_bf16_64x64_nk_n128: Block, Bf16, Panel<2, PanelOf<64, 64, B_COLUMNS>>;
                    wgmma_bf16_64x64_left_n128: Block, Bf16, Panel<2, PanelOf<64, 64, ON_THE_LEFT>>;
                    wgmma_bf16_64x64t_left_n128: Block, Bf16, Panel<2, PanelOf<64, 64, { A_COLUMNS | ON_THE_LEFT }>>;
                    wgmma_bf16_32x32_left_n256: Block, Bf16, Panel<4, PanelOf<32, 32, { IN_REGISTERS | ON_THE_LEFT }>>;
                    wgmma_bf16_32x32t_left_n256: Block, Bf16, Panel<4, PanelOf<32, 32, { COLUMN_PIECES | ON_THE_LEFT }>>;
                    wgmma_bf16_16x16_left_n256: Block, Bf16, Panel<4, PanelOf<16, 16, { IN_REGISTERS | ON_THE_LEFT }>>;
                    wgmma_bf16_16x16t_left_n256: Block, Bf16, Panel<4, PanelOf<16, 16, { COLUMN_PIECES | ON_THE_LEFT }>>;
                }
                panel_mma "panel_mma" WgmmaParams Product {
                    panel_mma_f16_64x64_n128: Block, F16, Panel<2, PanelOf<64, 64, PLAIN, 2, MmaQuarters, CpAsync>>;
                    panel_mma_f16_64x32_n128: Block, F16, Panel<2, PanelOf<64, 32, IN_REGISTERS, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_32x32_n128: Block, F16, Panel<2, PanelOf<32, 32, IN_REGISTERS, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_16x32_n128: Block, F16, Panel<2, PanelOf<16, 32, IN_REGISTERS, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_16x16_n128: Block, F16, Panel<2, PanelOf<16, 16, IN_REGISTERS, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_64x1_n128: Block, F16, Panel<2, PanelOf<64, 1, COLUMN_PIECES, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_32x1_n128: Block, F16, Panel<2, PanelOf<32, 1, COLUMN_PIECES, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_1x64_n128: Block, F16, Panel<2, PanelOf<1, 64, PLAIN, 2, MmaQuarters, CpAsync>>;
                    panel_mma_f16_64x64t_n128: Block, F16, Panel<2, PanelOf<64, 64, A_COLUMNS, 2, MmaQuarters, CpAsync>>;
                    panel_mma_f16_32x32t_n128: Block, F16, Panel<2, PanelOf<32, 32, COLUMN_PIECES, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_16x16t_n128: Block, F16, Panel<2, PanelOf<16, 16, COLUMN_PIECES, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_64x64_nk_n128: Block, F16, Panel<2, PanelOf<64, 64, B_COLUMNS, 2, MmaQuarters, CpAsync>>;
                    panel_mma_f16_64x64_left_n128: Block, F16, Panel<2, PanelOf<64, 64, ON_THE_LEFT, 2, MmaQuarters, CpAsync>>;
                    panel_mma_f16_64x64t_left_n128: Block, F16, Panel<2, PanelOf<64, 64, { A_COLUMNS | ON_THE_LEFT }, 2, MmaQuarters, CpAsync>>;
                    panel_mma_f16_32x32_left_n128: Block, F16, Panel<2, PanelOf<32, 32, { IN_REGISTERS | ON_THE_LEFT }, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_32x32t_left_n128: Block, F16, Panel<2, PanelOf<32, 32, { COLUMN_PIECES | ON_THE_LEFT }, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_16x16_left_n128: Block, F16, Panel<2, PanelOf<16, 16, { IN_REGISTERS | ON_THE_LEFT }, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_16x16t_left_n128: Block, F16, Panel<2, PanelOf<16, 16, { COLUMN_PIECES | ON_THE_LEFT }, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_64x64_n128_wide: Block, F16, Panel<2, PanelOf<64, 64, PLAIN, 2, MmaQuarters, CpAsyncWide>>;
                    panel_mma_f16_64x64_nk_n128_wide: Block, F16, Panel<2, PanelOf<64, 64, B_COLUMNS, 2, MmaQuarters, CpAsyncWide>>;
                    panel_mma_f16_64x64t_n128_wide: Block, F16, Panel<2, PanelOf<64, 64, A_COLUMNS, 2, MmaQuarters, CpAsyncWide>>;
                    panel_mma_bf16_64x64_n128: Block, Bf16, Panel<2, PanelOf<64, 64, PLAIN, 2, MmaQuarters, CpAsync>>;
                    panel_mma_bf16_64x32_n128: Block, Bf16, Panel<2, PanelOf<64, 32, IN_REGISTERS, 2, MmaSync, CpAsync>>;
                    panel_mma_bf16_32x32_n128: Block, Bf16, Panel<2, PanelOf<32, 32, IN_REGISTERS, 2, MmaSync, CpAsync>>;
                    panel_mma_bf16_16x32_n128: Block, Bf16, Panel<2, PanelOf<16, 32, IN_REGISTERS, 2, MmaSync, CpAsync>>;
                    panel_mma_bf16_16x16_n128: Block, Bf16, Panel<2, PanelOf<16, 16, IN_REGISTERS, 2, MmaSync, CpAsync>>;
                    panel_mma_bf16_64x1_n128: Block, Bf16, Panel<2, PanelOf<64, 1, COLUMN_PIECES, 2, MmaSync, CpAsync>>;
                    panel_mma_bf16_32x1_n128: Block, Bf16, Panel<2, PanelOf<32, 1, COLUMN_PIECES, 2, MmaSync, CpAsync>>;
                    panel_mma_bf16_1x64_n128: Block, Bf16, Panel<2, PanelOf<1, 64, PLAIN, 2, MmaQuarters, CpAsync>>;
                    panel_mma_bf16_64x64t_n128: Block, Bf16, Panel<2, PanelOf<64, 64, A_COLUMNS, 2, MmaQuarters, CpAsync>>;
                    panel_mma_bf16_32x32t_n128: Block, Bf16, Panel<2, PanelOf<32, 32, COLUMN_PIECES, 2, MmaSync, CpAsync>>;
                    panel_mma_bf16_16x16t_n128: Block, Bf16, Panel<2, PanelOf<16, 16, COLUMN_PIECES, 2, MmaSync, CpAsync>>;
                    panel_mma_bf16_64x64_nk_n128: Block, Bf16, Panel<2, PanelOf<64, 64, B_COLUMNS, 2, MmaQuarters, CpAsync>>;
                    panel_mma_bf16_64x64_left_n128: Block, Bf16, Panel<2, PanelOf<64, 64, ON_THE_LEFT, 2, MmaQuarters, CpAsync>>;
                    panel_mma_bf16_64x64t_left_n128: Block, Bf16, Panel<2, PanelOf<64, 64, { A_COLUMNS | ON_THE_LEFT }, 2, MmaQuarters, CpAsync>>;
                    panel_mma_bf16_32x32_left_n128: Block, Bf16, Panel<2, PanelOf<32, 32, { IN_REGISTERS | ON_THE_LEFT }, 2, MmaSync, CpAsync>>;
                    panel_mma_bf16_32x32t_left_n128: Block, Bf16, Panel<2, PanelOf<32, 32, { COLUMN_PIECES | ON_THE_LEFT }, 2, MmaSync, CpAsync>>;
                    panel_mma_bf16_16x16_left_n128: Block, Bf16, Panel<2, PanelOf<16, 16, { IN_REGISTERS | ON_THE_LEFT }, 2, MmaSync, CpAsync>>;
                    panel_mma_bf16_16x16t_left_n128: Block, Bf16, Panel<2, PanelOf<16, 16, { COLUMN_PIECES | ON_THE_LEFT }, 2, MmaSync, CpAsync>>;
                    panel_mma_bf16_64x64_n128_wide: Block, Bf16, Panel<2, PanelOf<64, 64, PLAIN, 2, MmaQuarters, CpAsyncWide>>;
                    panel_mma_bf16_64x64_nk_n128_wide: Block, Bf16, Panel<2, PanelOf<64, 64, B_COLUMNS, 2, MmaQuarters, CpAsyncWide>>;
                    panel_mma_bf16_64x64t_n128_wide: Block, Bf16, Panel<2, PanelOf<64, 64, A_COLUMNS, 2, MmaQuarters, CpAsyncWide>>;
                }
                dense "dense" DenseParams Product {
                    dense_f16_64x64: Direct, F16, DenseTile<1, DenseOf<1, 1>>;
                    dense_f16_64x64_k2: Direct, F16, DenseTile<1, DenseOf<1, 2>>;
                    dense_f16_64x64_k4: Direct, F16, DenseTile<1, DenseOf<1, 4>>;
                    dense_f16_64x64_k8: Direct, F16, DenseTile<1, DenseOf<1, 8>>;
                    dense_f16_128x64: Direct, F16, DenseTile<1, DenseOf<2, 1>>;
                    dense_f16_128x64_k2: Direct, F16, DenseTile<1, DenseOf<2, 2>>;
                    dense_f16_128x64_k4: Direct, F16, DenseTile<1, DenseOf<2, 4>>;
                    dense_f16_64x128_k2: Direct, F16, DenseTile<2, DenseOf<1, 2>>;
                    dense_f16_64x128_k4: Direct, F16, DenseTile<2, DenseOf<1, 4>>;
                    dense_f16_128x128: Direct, F16, DenseTile<2, DenseOf<2, 1>>;
                    dense_f16_128x128_k2: Direct, F16, DenseTile<2, DenseOf<2, 2>>;
                    dense_f16_128x256_k2: Direct, F16, DenseTile<4, DenseOf<2, 2>>;
                    dense_bf16_64x64: Direct, Bf16, DenseTile<1, DenseOf<1, 1>>;
                    dense_bf16_64x64_k2: Direct, Bf16, DenseTile<1, DenseOf<1, 2>>;
                    dense_bf16_64x64_k4: Direct, Bf16, DenseTile<1, DenseOf<1, 4>>;
                    dense_bf16_64x64_k8: Direct, Bf16, DenseTile<1, DenseOf<1, 8>>;
                    dense_bf16_128x64: Direct, Bf16, DenseTile<1, DenseOf<2, 1>>;
                    dense_bf16_128x64_k2: Direct, Bf16, DenseTile<1, DenseOf<2, 2>>;
                    dense_bf16_128x64_k4: Direct, Bf16, DenseTile<1, DenseOf<2, 4>>;
                    dense_bf16_64x128_k2: Direct, Bf16, DenseTile<2, DenseOf<1, 2>>;
                    dense_bf16_64x128_k4: Direct, Bf16, DenseTile<2, DenseOf<1, 4>>;
                    dense_bf16_128x128: Direct, Bf16, DenseTile<2, DenseOf<2, 1>>;
                    dense_bf16_128x128_k2: Direct, Bf16, DenseTile<2, DenseOf<2, 2>>;
                    dense_bf16_128x256_k2: Direct, Bf16, DenseTile<4, DenseOf<2, 2>>;
                    dense_tf32_64x64: Direct, Tf32, DenseTile<1, DenseOf<1, 1, 4>>;
                    dense_tf32_64x64_k2: Direct, Tf32, DenseTile<1, DenseOf<1, 2, 4>>;
                    dense_tf32_64x64_k4: Direct, Tf32, DenseTile<1, DenseOf<1, 4, 4>>;
                    dense_tf32_64x64_k8: Direct, Tf32, DenseTile<1, DenseOf<1, 8, 4>>;
                    dense_tf32_128x64: Direct, Tf32, DenseTile<2, DenseOf<1, 1, 4>>;
                    dense_tf32_128x64_k2: Direct, Tf32, DenseTile<2, DenseOf<1, 2, 4>>;
                    dense_tf32_128x64_k4: Direct, Tf32, DenseTile<2, DenseOf<1, 4, 4>>;
                    dense_tf32_128x128: Direct, Tf32, DenseTile<2, DenseOf<2, 1, 4>>;
                    dense_tf32_128x128_k2: Direct, Tf32, DenseTile<2, DenseOf<2, 2, 4>>;
                    dense_tf32_128x128_k4: Direct, Tf32, DenseTile<2, DenseOf<2, 4, 4>>;
                }
                dense_mma "dense_mma" DenseParams Product {
                    dense_mma_f16_64x64: Direct, F16, DenseTile<1, DenseOf<1, 1, 2, MmaQuarters, CpAsync>>;
                    dense_mma_f16_128x128: Direct, F16, DenseTile<2, DenseOf<2, 1, 2, MmaQuarters, CpAsync>>;
                    dense_mma_f16_128x256_wide: Direct, F16, DenseTile<4, DenseOf<2, 1, 2, MmaQuarters, CpAsyncWide>>;
                    dense_mma_bf16_64x64: Direct, Bf16, DenseTile<1, DenseOf<1, 1, 2, MmaQuarters, CpAsync>>;
                    dense_mma_bf16_128x128: Direct, Bf16, DenseTile<2, DenseOf<2, 1, 2, MmaQuarters, CpAsync>>;
                    dense_mma_bf16_128x256_wide: Direct, Bf16, DenseTile<4, DenseOf<2, 1, 2, MmaQuarters, CpAsyncWide>>;
                    dense_mma_tf32_64x64: Direct, Tf32, DenseTile<1, DenseOf<1, 1, 4, MmaSync, CpAsync>>;
                    dense_mma_tf32_128x64: Direct, Tf32, DenseTile<2, DenseOf<1, 1, 4, MmaSync, CpAsync>>;
                    dense_mma_tf32_128x128: Direct, Tf32, DenseTile<2, DenseOf<2, 1, 4, MmaSync, CpAsync>>;
                }
                nm "nm" NmParams Product {
                    nm_f16_128x128: Nm, F16, TwoOfFour<1, 2, NmOf>;
                    nm_f16_128x256: Nm, F16, TwoOfFour<1, 4, NmOf>;
                    nm_bf16_128x128: Nm, Bf16, TwoOfFour<1, 2, NmOf>;
                    nm_bf16_128x256: Nm, Bf16, TwoOfFour<1, 4, NmOf>;
                }
                nm_mma "nm_mma" NmParams Product {
                    nm_mma_f16_128x128: Nm, F16, TwoOfFour<1, 2, NmOf<2, MmaQuarters, CpAsync>>;
                    nm_mma_f16_256x128_wide: Nm, F16, TwoOfFour<2, 2, NmOf<2, MmaQuarters, CpAsyncWide>>;
                    nm_mma_bf16_128x128: Nm, Bf16, TwoOfFour<1, 2, NmOf<2, MmaQuarters, CpAsync>>;
                    nm_mma_bf16_256x128_wide: Nm, Bf16, TwoOfFour<2, 2, NmOf<2, MmaQuarters, CpAsyncWide>>;
                }
                narrow "narrow" WgmmaParams Narrow {
                    narrow_e4m3_64x128_n256: Block, E4m3, Panel<4, PanelOf<64, 128, B_COLUMNS, 1>>;
                    narrow_e4m3_64x64_n256: Block, E4m3, Panel<4, PanelOf<64, 64, B_COLUMNS, 1>>;
                    narrow_e4m3_32x32_n256: Block, E4m3, Panel<4, PanelOf<32, 32, B_COLUMNS, 1>>;
                    narrow_e5m2_64x128_n256: Block, E5m2, Panel<4, PanelOf<64, 128, B_COLUMNS, 1>>;
                    narrow_e5m2_64x64_n256: Block, E5m2, Panel<4, PanelOf<64, 64, B_COLUMNS, 1>>;
                    narrow_e5m2_32x32_n256: Block, E5m2, Panel<4, PanelOf<32, 32, B_COLUMNS, 1>>;
                    narrow_int8_64x128_n256: Block, Int8, Panel<4, PanelOf<64, 128, B_COLUMNS, 1>>;
                    narrow_int8_64x64_n256: Block, Int8, Panel<4, PanelOf<64, 64, B_COLUMNS, 1>>;
                    narrow_int8_32x32_n256: Block, Int8, Panel<4, PanelOf<32, 32, B_COLUMNS, 1>>;
                }
                narrow_mma "narrow_mma" WgmmaParams Narrow {
                    narrow_mma_e4m3_64x128_n128: Block, E4m3, Panel<2, PanelOf<64, 128, B_COLUMNS, 1, MmaQuarters, CpAsync>>;
                    narrow_mma_e4m3_64x64_n128: Block, E4m3, Panel<2, PanelOf<64, 64, B_COLUMNS, 1, MmaQuarters, CpAsync>>;
                    narrow_mma_e4m3_32x32_n128: Block, E4m3, Panel<2, PanelOf<32, 32, B_COLUMNS, 1, MmaQuarters, CpAsync>>;
                    narrow_mma_e5m2_64x128_n128: Block, E5m2, Panel<2, PanelOf<64, 128, B_COLUMNS, 1, MmaQuarters, CpAsync>>;
                    narrow_mma_e5m2_64x64_n128: Block, E5m2, Panel<2, PanelOf<64, 64, B_COLUMNS, 1, MmaQuarters, CpAsync>>;
                    narrow_mma_e5m2_32x32_n128: Block, E5m2, Panel<2, PanelOf<32, 32, B_COLUMNS, 1, MmaQuarters, CpAsync>>;
                    narrow_mma_int8_64x128_n128: Block, Int8, Panel<2, PanelOf<64, 128, B_COLUMNS, 1, MmaQuarters, CpAsync>>;
                    narrow_mma_int8_64x64_n128: Block, Int8, Panel<2, PanelOf<64, 64, B_COLUMNS, 1, MmaQuarters, CpAsync>>;
                    narrow_mma_int8_32x32_n128: Block, Int8, Panel<2, PanelOf<32, 32, B_COLUMNS, 1, MmaQuarters, CpAsync>>;
                    narrow_mma_e4m3_32x32_n128_fp8: Block, E4m3, Panel<2, PanelOf<32, 32, B_COLUMNS, 1, MmaFp8, CpAsync>>;
                    narrow_mma_e5m2_32x32_n128_fp8: Block, E5m2, Panel<2, PanelOf<32, 32, B_COLUMNS, 1, MmaFp8, CpAsync>>;
                }
                nm_narrow "nm_narrow" NmParams Narrow {
                    nm_int8_128x256: Nm, Int8, TwoOfFour<1, 4, NmOf<1>>;
                    nm_int8_128x128: Nm, Int8, TwoOfFour<1, 2, NmOf<1>>;
                }
                nm_narrow_mma "nm_narrow_mma" NmParams Narrow {
                    nm_mma_int8_128x128: Nm, Int8, TwoOfFour<1, 2, NmOf<1, MmaQuarters, CpAsync>>;
                }
                dense_live "dense_live" DenseParams Live {
                    dense_live_f16_128x128: Direct, F16, LiveTile<2, DenseOf<2, 1>>;
                    dense_live_f16_128x128_k2: Direct, F16, LiveTile<2, DenseOf<2, 2>>;
                    dense_live_f16_128x128_k4: Direct, F16, LiveTile<2, DenseOf<2, 4>>;
                    dense_live_f16_128x192: Direct, F16, LiveTile<3, DenseOf<2, 1>>;
                    dense_live_f16_128x256: Direct, F16, LiveTile<4, DenseOf<2, 1>>;
                    dense_live_f16_128x256_k2: Direct, F16, LiveTile<4, DenseOf<2, 2>>;
                    dense_live_f16_128x256_k4: Direct, F16, LiveTile<4, DenseOf<2, 4>>;
                    dense_live_bf16_128x128: Direct, Bf16, LiveTile<2, DenseOf<2, 1>>;
                    dense_live_bf16_128x128_k2: Direct, Bf16, LiveTile<2, DenseOf<2, 2>>;
                    dense_live_bf16_128x128_k4: Direct, Bf16, LiveTile<2, DenseOf<2, 4>>;
                    dense_live_bf16_128x192: Direct, Bf16, LiveTile<3, DenseOf<2, 1>>;
                    dense_live_bf16_128x256: Direct, Bf16, LiveTile<4, DenseOf<2, 1>>;
                    dense_live_bf16_128x256_k2: Direct, Bf16, LiveTile<4, DenseOf<2, 2>>;
                    dense_live_bf16_128x256_k4: Direct, Bf16, LiveTile<4, DenseOf<2, 4>>;
                }
                dense_live_mma "dense_live_mma" DenseParams Live {
                    dense_live_mma_f16_128x128: Direct, F16, LiveTile<2, DenseOf<2, 1, 2, MmaQuarters, CpAsync>>;
                    dense_live_mma_f16_128x256_wide: Direct, F16, LiveTile<4, DenseOf<2, 1, 2, MmaQuarters, CpAsyncWide>>;
                    dense_live_mma_bf16_128x128: Direct, Bf16, LiveTile<2, DenseOf<2, 1, 2, MmaQuarters, CpAsync>>;
                    dense_live_mma_bf16_128x256_wide: Direct, Bf16, LiveTile<4, DenseOf<2, 1, 2, MmaQuarters, CpAsyncWide>>;
                }
                dense_csr "dense_csr" DenseCsrParams Product {
                    dense_csr_f16_64x64: Filled, F16, FilledTile<1, DenseOf<1, 1>>;
                    dense_csr_f16_64x64_k2: Filled, F16, FilledTile<1, DenseOf<1, 2>>;
                    dense_csr_f16_64x64_k4: Filled, F16, FilledTile<1, DenseOf<1, 4>>;
                    dense_csr_f16_64x128_k2: Filled, F16, FilledTile<2, DenseOf<1, 2>>;
                    dense_csr_f16_64x256: Filled, F16, FilledTile<4, DenseOf<1, 1>>;
                    dense_csr_f16_64x256_k2: Filled, F16, FilledTile<4, DenseOf<1, 2>>;
                    dense_csr_f16_128x128_k2: Filled, F16, FilledTile<2, DenseOf<2, 2>>;
                    dense_csr_f16_128x256: Filled, F16, FilledTile<4, DenseOf<2, 1>>;
                    dense_csr_bf16_64x64: Filled, Bf16, FilledTile<1, DenseOf<1, 1>>;
                    dense_csr_bf16_64x64_k2: Filled, Bf16, FilledTile<1, DenseOf<1, 2>>;
                    dense_csr_bf16_64x64_k4: Filled, Bf16, FilledTile<1, DenseOf<1, 4>>;
                    dense_csr_bf16_64x128_k2: Filled, Bf16, FilledTile<2, DenseOf<1, 2>>;
                    dense_csr_bf16_64x256: Filled, Bf16, FilledTile<4, DenseOf<1, 1>>;
                    dense_csr_bf16_64x256_k2: Filled, Bf16, FilledTile<4, DenseOf<1, 2>>;
                    dense_csr_bf16_128x128_k2: Filled, Bf16, FilledTile<2, DenseOf<2, 2>>;
                    dense_csr_bf16_128x256: Filled, Bf16, FilledTile<4, DenseOf<2, 1>>;
                }
                dense_csr_mma "dense_csr_mma" DenseCsrParams Product {
                    dense_csr_mma_f16_64x64: Filled, F16, FilledTile<1, DenseOf<1, 1, 2, MmaQuarters, CpAsync>>;
                    dense_csr_mma_f16_128x128: Filled, F16, FilledTile<2, DenseOf<2, 1, 2, MmaQuarters, CpAsync>>;
                    dense_csr_mma_bf16_64x64: Filled, Bf16, FilledTile<1, DenseOf<1, 1, 2, MmaQuarters, CpAsync>>;
                    dense_csr_mma_bf16_128x128: Filled, Bf16, FilledTile<2, DenseOf<2, 1, 2, MmaQuarters, CpAsync>>;
                }
                dense_conv "dense_conv" DenseConvParams Own {
                    dense_conv_f16_64x64: Direct, F16, ConvTile<1, DenseOf<1, 1>>;
                    dense_conv_f16_64x64_k4: Direct, F16, ConvTile<1, DenseOf<1, 4>>;
                    dense_conv_f16_128x64: Direct, F16, ConvTile<1, DenseOf<2, 1>>;
                    dense_conv_f16_128x128: Direct, F16, ConvTile<2, DenseOf<2, 1>>;
                    dense_conv_f16_128x128_k2: Direct, F16, ConvTile<2, DenseOf<2, 2>>;
                    dense_conv_f16_128x128_k4: Direct, F16, ConvTile<2, DenseOf<2, 4>>;
                    dense_conv_f16_128x256: Direct, F16, ConvTile<4, DenseOf<2, 1>>;
                    dense_conv_f16_128x256_k2: Direct, F16, ConvTile<4, DenseOf<2, 2>>;
                    dense_conv_f16_128x256_k4: Direct, F16, ConvTile<4, DenseOf<2, 4>>;
                    dense_conv_bf16_64x64: Direct, Bf16, ConvTile<1, DenseOf<1, 1>>;
                    dense_conv_bf16_64x64_k4: Direct, Bf16, ConvTile<1, DenseOf<1, 4>>;
                    dense_conv_bf16_128x64: Direct, Bf16, ConvTile<1, DenseOf<2, 1>>;
                    dense_conv_bf16_128x128: Direct, Bf16, ConvTile<2, DenseOf<2, 1>>;
                    dense_conv_bf16_128x128_k2: Direct, Bf16, ConvTile<2, DenseOf<2, 2>>;
                    dense_conv_bf16_128x128_k4: Direct, Bf16, ConvTile<2, DenseOf<2, 4>>;
                    dense_conv_bf16_128x256: Direct, Bf16, ConvTile<4, DenseOf<2, 1>>;
                    dense_conv_bf16_128x256_k2: Direct, Bf16, ConvTile<4, DenseOf<2, 2>>;
                    dense_conv_bf16_128x256_k4: Direct, Bf16, ConvTile<4, DenseOf<2, 4>>;
                }
                dense_conv_mma "dense_conv_mma" DenseConvParams Own {
                    dense_conv_mma_f16_64x64: Direct, F16, ConvTile<1, DenseOf<1, 1, 2, MmaQuarters, CpAsync>>;
                    dense_conv_mma_f16_128x128: Direct, F16, ConvTile<2, DenseOf<2, 1, 2, MmaQuarters, CpAsync>>;
                    dense_conv_mma_f16_128x256_wide: Direct, F16, ConvTile<4, DenseOf<2, 1, 2, MmaQuarters, CpAsyncWide>>;
                    dense_conv_mma_bf16_64x64: Direct, Bf16, ConvTile<1, DenseOf<1, 1, 2, MmaQuarters, CpAsync>>;
                    dense_conv_mma_bf16_128x128: Direct, Bf16, ConvTile<2, DenseOf<2, 1, 2, MmaQuarters, CpAsync>>;
                    dense_conv_mma_bf16_128x256_wide: Direct, Bf16, ConvTile<4, DenseOf<2, 1, 2, MmaQuarters, CpAsyncWide>>;
                }
            }
        }
    };
}
