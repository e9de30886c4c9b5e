//! Kernels of the family `gemm`: rows of the kernel table.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_gemm {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            gemm {
                "block" SpmmParams Product {
                    block_f16_b16 F16, block_bf16_b16 Bf16, block_tf32_b16 Tf32: Block, MmaTile<16, 1, 4, true>;
                    block_f16_b32 F16, block_bf16_b32 Bf16, block_tf32_b32 Tf32: Block, MmaTile<32, 2, 4, true>;
                    block_f16_b64 F16, block_bf16_b64 Bf16, block_tf32_b64 Tf32: Block, MmaTile<64, 2, 8, true>;
                    block_f16_b16_any F16, block_bf16_b16_any Bf16, block_tf32_b16_any Tf32: Block, MmaTile<16, 1, 4, false>;
                    block_f16_b32_any F16, block_bf16_b32_any Bf16, block_tf32_b32_any Tf32: Block, MmaTile<32, 2, 4, false>;
                    block_f16_b64_any F16, block_bf16_b64_any Bf16, block_tf32_b64_any Tf32: Block, MmaTile<64, 2, 8, false>;
                }
                "wgmma" WgmmaParams Product {
                    wgmma_f16_64x64_n256 F16, wgmma_bf16_64x64_n256 Bf16: Block, Panel<4, PanelOf<64, 64, PLAIN>>;
                    wgmma_f16_64x64_n128 F16, wgmma_bf16_64x64_n128 Bf16: Block, Panel<2, PanelOf<64, 64, PLAIN>>;
                    wgmma_f16_64x32_n256 F16, wgmma_bf16_64x32_n256 Bf16: Block, Panel<4, PanelOf<64, 32, IN_REGISTERS>>;
                    wgmma_f16_64x32_n128 F16, wgmma_bf16_64x32_n128 Bf16: Block, Panel<2, PanelOf<64, 32, IN_REGISTERS>>;
                    wgmma_f16_32x32_n256 F16, wgmma_bf16_32x32_n256 Bf16: Block, Panel<4, PanelOf<32, 32, IN_REGISTERS>>;
                    wgmma_f16_32x32_n128 F16, wgmma_bf16_32x32_n128 Bf16: Block, Panel<2, PanelOf<32, 32, IN_REGISTERS>>;
                    wgmma_f16_16x32_n256 F16, wgmma_bf16_16x32_n256 Bf16: Block, Panel<4, PanelOf<16, 32, IN_REGISTERS>>;
                    wgmma_f16_16x32_n128 F16, wgmma_bf16_16x32_n128 Bf16: Block, Panel<2, PanelOf<16, 32, IN_REGISTERS>>;
                    wgmma_f16_16x16_n256 F16, wgmma_bf16_16x16_n256 Bf16: Block, Panel<4, PanelOf<16, 16, IN_REGISTERS>>;
                    wgmma_f16_16x16_n128 F16, wgmma_bf16_16x16_n128 Bf16: Block, Panel<2, PanelOf<16, 16, IN_REGISTERS>>;
                    wgmma_f16_64x1_n256 F16, wgmma_bf16_64x1_n256 Bf16: Block, Panel<4, PanelOf<64, 1, COLUMN_PIECES>>;
                    wgmma_f16_32x1_n256 F16, wgmma_bf16_32x1_n256 Bf16: Block, Panel<4, PanelOf<32, 1, COLUMN_PIECES>>;
                    wgmma_f16_1x64_n256 F16, wgmma_bf16_1x64_n256 Bf16: Block, Panel<4, PanelOf<1, 64, PLAIN>>;
                    wgmma_f16_64x64t_n256 F16, wgmma_bf16_64x64t_n256 Bf16: Block, Panel<4, PanelOf<64, 64, A_COLUMNS>>;
                    wgmma_f16_64x64t_n128 F16, wgmma_bf16_64x64t_n128 Bf16: Block, Panel<2, PanelOf<64, 64, A_COLUMNS>>;
                    wgmma_f16_32x32t_n256 F16, wgmma_bf16_32x32t_n256 Bf16: Block, Panel<4, PanelOf<32, 32, COLUMN_PIECES>>;
                    wgmma_f16_16x16t_n256 F16, wgmma_bf16_16x16t_n256 Bf16: Block, Panel<4, PanelOf<16, 16, COLUMN_PIECES>>;
                    wgmma_f16_64x64_nk_n256 F16, wgmma_bf16_64x64_nk_n256 Bf16: Block, Panel<4, PanelOf<64, 64, B_COLUMNS>>;
                    wgmma_f16_64x64_left_n256 F16, wgmma_bf16_64x64_left_n256 Bf16: Block, Panel<4, PanelOf<64, 64, ON_THE_LEFT>>;
                    wgmma_f16_64x64t_left_n256 F16, wgmma_bf16_64x64t_left_n256 Bf16: Block, Panel<4, PanelOf<64, 64, { A_COLUMNS | ON_THE_LEFT }>>;
                    wgmma_f16_64x64_nk_n128 F16, wgmma_bf16_64x64_nk_n128 Bf16: Block, Panel<2, PanelOf<64, 64, B_COLUMNS>>;
                    wgmma_f16_64x64_left_n128 F16, wgmma_bf16_64x64_left_n128 Bf16: Block, Panel<2, PanelOf<64, 64, ON_THE_LEFT>>;
                    wgmma_f16_64x64t_left_n128 F16, wgmma_bf16_64x64t_left_n128 Bf16: Block, Panel<2, PanelOf<64, 64, { A_COLUMNS | ON_THE_LEFT }>>;
                    wgmma_f16_32x32_left_n256 F16, wgmma_bf16_32x32_left_n256 Bf16: Block, Panel<4, PanelOf<32, 32, { IN_REGISTERS | ON_THE_LEFT }>>;
                    wgmma_f16_32x32t_left_n256 F16, wgmma_bf16_32x32t_left_n256 Bf16: Block, Panel<4, PanelOf<32, 32, { COLUMN_PIECES | ON_THE_LEFT }>>;
                    wgmma_f16_16x16_left_n256 F16, wgmma_bf16_16x16_left_n256 Bf16: Block, Panel<4, PanelOf<16, 16, { IN_REGISTERS | ON_THE_LEFT }>>;
                    wgmma_f16_16x16t_left_n256 F16, wgmma_bf16_16x16t_left_n256 Bf16: Block, Panel<4, PanelOf<16, 16, { COLUMN_PIECES | ON_THE_LEFT }>>;
                    panel_mma_f16_64x64_n128 F16, panel_mma_bf16_64x64_n128 Bf16: Block, Panel<2, PanelOf<64, 64, PLAIN, 2, MmaQuarters, CpAsync>>;
                    panel_mma_f16_64x32_n128 F16, panel_mma_bf16_64x32_n128 Bf16: Block, Panel<2, PanelOf<64, 32, IN_REGISTERS, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_32x32_n128 F16, panel_mma_bf16_32x32_n128 Bf16: Block, Panel<2, PanelOf<32, 32, IN_REGISTERS, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_16x32_n128 F16, panel_mma_bf16_16x32_n128 Bf16: Block, Panel<2, PanelOf<16, 32, IN_REGISTERS, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_16x16_n128 F16, panel_mma_bf16_16x16_n128 Bf16: Block, Panel<2, PanelOf<16, 16, IN_REGISTERS, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_64x1_n128 F16, panel_mma_bf16_64x1_n128 Bf16: Block, Panel<2, PanelOf<64, 1, COLUMN_PIECES, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_32x1_n128 F16, panel_mma_bf16_32x1_n128 Bf16: Block, Panel<2, PanelOf<32, 1, COLUMN_PIECES, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_1x64_n128 F16, panel_mma_bf16_1x64_n128 Bf16: Block, Panel<2, PanelOf<1, 64, PLAIN, 2, MmaQuarters, CpAsync>>;
                    panel_mma_f16_64x64t_n128 F16, panel_mma_bf16_64x64t_n128 Bf16: Block, Panel<2, PanelOf<64, 64, A_COLUMNS, 2, MmaQuarters, CpAsync>>;
                    panel_mma_f16_32x32t_n128 F16, panel_mma_bf16_32x32t_n128 Bf16: Block, Panel<2, PanelOf<32, 32, COLUMN_PIECES, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_16x16t_n128 F16, panel_mma_bf16_16x16t_n128 Bf16: Block, Panel<2, PanelOf<16, 16, COLUMN_PIECES, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_64x64_nk_n128 F16, panel_mma_bf16_64x64_nk_n128 Bf16: Block, Panel<2, PanelOf<64, 64, B_COLUMNS, 2, MmaQuarters, CpAsync>>;
                    panel_mma_f16_64x64_left_n128 F16, panel_mma_bf16_64x64_left_n128 Bf16: Block, Panel<2, PanelOf<64, 64, ON_THE_LEFT, 2, MmaQuarters, CpAsync>>;
                    panel_mma_f16_64x64t_left_n128 F16, panel_mma_bf16_64x64t_left_n128 Bf16: Block, Panel<2, PanelOf<64, 64, { A_COLUMNS | ON_THE_LEFT }, 2, MmaQuarters, CpAsync>>;
                    panel_mma_f16_32x32_left_n128 F16, panel_mma_bf16_32x32_left_n128 Bf16: Block, Panel<2, PanelOf<32, 32, { IN_REGISTERS | ON_THE_LEFT }, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_32x32t_left_n128 F16, panel_mma_bf16_32x32t_left_n128 Bf16: Block, Panel<2, PanelOf<32, 32, { COLUMN_PIECES | ON_THE_LEFT }, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_16x16_left_n128 F16, panel_mma_bf16_16x16_left_n128 Bf16: Block, Panel<2, PanelOf<16, 16, { IN_REGISTERS | ON_THE_LEFT }, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_16x16t_left_n128 F16, panel_mma_bf16_16x16t_left_n128 Bf16: Block, Panel<2, PanelOf<16, 16, { COLUMN_PIECES | ON_THE_LEFT }, 2, MmaSync, CpAsync>>;
                    panel_mma_f16_64x64_n128_wide F16, panel_mma_bf16_64x64_n128_wide Bf16: Block, Panel<2, PanelOf<64, 64, PLAIN, 2, MmaQuarters, CpAsyncWide>>;
                    panel_mma_f16_64x64_nk_n128_wide F16, panel_mma_bf16_64x64_nk_n128_wide Bf16: Block, Panel<2, PanelOf<64, 64, B_COLUMNS, 2, MmaQuarters, CpAsyncWide>>;
                    panel_mma_f16_64x64t_n128_wide F16, panel_mma_bf16_64x64t_n128_wide Bf16: Block, Panel<2, PanelOf<64, 64, A_COLUMNS, 2, MmaQuarters, CpAsyncWide>>;
                }
                "dense" DenseParams Product {
                    dense_f16_64x64 F16, dense_bf16_64x64 Bf16: Direct, DenseTile<1, DenseOf<1, 1>>;
                    dense_f16_64x64_k2 F16, dense_bf16_64x64_k2 Bf16: Direct, DenseTile<1, DenseOf<1, 2>>;
                    dense_f16_64x64_k4 F16, dense_bf16_64x64_k4 Bf16: Direct, DenseTile<1, DenseOf<1, 4>>;
                    dense_f16_64x64_k8 F16, dense_bf16_64x64_k8 Bf16: Direct, DenseTile<1, DenseOf<1, 8>>;
                    dense_f16_128x64 F16, dense_bf16_128x64 Bf16: Direct, DenseTile<1, DenseOf<2, 1>>;
                    dense_f16_128x64_k2 F16, dense_bf16_128x64_k2 Bf16: Direct, DenseTile<1, DenseOf<2, 2>>;
                    dense_f16_128x64_k4 F16, dense_bf16_128x64_k4 Bf16: Direct, DenseTile<1, DenseOf<2, 4>>;
                    dense_f16_64x128_k2 F16, dense_bf16_64x128_k2 Bf16: Direct, DenseTile<2, DenseOf<1, 2>>;
                    dense_f16_64x128_k4 F16, dense_bf16_64x128_k4 Bf16: Direct, DenseTile<2, DenseOf<1, 4>>;
                    dense_f16_128x128 F16, dense_bf16_128x128 Bf16: Direct, DenseTile<2, DenseOf<2, 1>>;
                    dense_f16_128x128_k2 F16, dense_bf16_128x128_k2 Bf16: Direct, DenseTile<2, DenseOf<2, 2>>;
                    dense_tf32_64x64 Tf32: Direct, DenseTile<1, DenseOf<1, 1, 4>>;
                    dense_tf32_64x64_k2 Tf32: Direct, DenseTile<1, DenseOf<1, 2, 4>>;
                    dense_tf32_64x64_k4 Tf32: Direct, DenseTile<1, DenseOf<1, 4, 4>>;
                    dense_tf32_64x64_k8 Tf32: Direct, DenseTile<1, DenseOf<1, 8, 4>>;
                    dense_tf32_128x64 Tf32: Direct, DenseTile<2, DenseOf<1, 1, 4>>;
                    dense_tf32_128x64_k2 Tf32: Direct, DenseTile<2, DenseOf<1, 2, 4>>;
                    dense_tf32_128x64_k4 Tf32: Direct, DenseTile<2, DenseOf<1, 4, 4>>;
                    dense_tf32_128x128 Tf32: Direct, DenseTile<2, DenseOf<2, 1, 4>>;
                    dense_tf32_128x128_k2 Tf32: Direct, DenseTile<2, DenseOf<2, 2, 4>>;
                    dense_mma_f16_64x64 F16, dense_mma_bf16_64x64 Bf16: Direct, DenseTile<1, DenseOf<1, 1, 2, MmaQuarters, CpAsync>>;
                    dense_mma_f16_128x128 F16, dense_mma_bf16_128x128 Bf16: Direct, DenseTile<2, DenseOf<2, 1, 2, MmaQuarters, CpAsync>>;
                    dense_mma_f16_128x256_wide F16, dense_mma_bf16_128x256_wide Bf16: Direct, DenseTile<4, DenseOf<2, 1, 2, MmaQuarters, CpAsyncWide>>;
                    dense_mma_tf32_64x64 Tf32: Direct, DenseTile<1, DenseOf<1, 1, 4, MmaSync, CpAsync>>;
                    dense_mma_tf32_128x64 Tf32: Direct, DenseTile<2, DenseOf<1, 1, 4, MmaSync, CpAsync>>;
                    dense_mma_tf32_128x128 Tf32: Direct, DenseTile<2, DenseOf<2, 1, 4, MmaSync, CpAsync>>;
                }
                "nm" NmParams Product {
                    nm_f16_128x128 F16, nm_bf16_128x128 Bf16: Nm, TwoOfFour<1, 2, NmOf>;
                    nm_f16_128x256 F16, nm_bf16_128x256 Bf16: Nm, TwoOfFour<1, 4, NmOf>;
                    nm_mma_f16_128x128 F16, nm_mma_bf16_128x128 Bf16: Nm, TwoOfFour<1, 2, NmOf<2, MmaQuarters, CpAsync>>;
                    nm_mma_f16_256x128_wide F16, nm_mma_bf16_256x128_wide Bf16: Nm, TwoOfFour<2, 2, NmOf<2, MmaQuarters, CpAsyncWide>>;
                }
                "narrow" WgmmaParams Narrow {
                    narrow_e4m3_64x128_n256 E4m3, narrow_e5m2_64x128_n256 E5m2, narrow_int8_64x128_n256 Int8: Block, Panel<4, PanelOf<64, 128, B_COLUMNS, 1>>;
                    narrow_e4m3_64x64_n256 E4m3, narrow_e5m2_64x64_n256 E5m2, narrow_int8_64x64_n256 Int8: Block, Panel<4, PanelOf<64, 64, B_COLUMNS, 1>>;
                    narrow_e4m3_32x32_n256 E4m3, narrow_e5m2_32x32_n256 E5m2, narrow_int8_32x32_n256 Int8: Block, Panel<4, PanelOf<32, 32, B_COLUMNS, 1>>;
                    narrow_mma_e4m3_64x128_n128 E4m3, narrow_mma_e5m2_64x128_n128 E5m2, narrow_mma_int8_64x128_n128 Int8: Block, Panel<2, PanelOf<64, 128, B_COLUMNS, 1, MmaQuarters, CpAsync>>;
                    narrow_mma_e4m3_64x64_n128 E4m3, narrow_mma_e5m2_64x64_n128 E5m2, narrow_mma_int8_64x64_n128 Int8: Block, Panel<2, PanelOf<64, 64, B_COLUMNS, 1, MmaQuarters, CpAsync>>;
                    narrow_mma_e4m3_32x32_n128 E4m3, narrow_mma_e5m2_32x32_n128 E5m2, narrow_mma_int8_32x32_n128 Int8: Block, Panel<2, PanelOf<32, 32, B_COLUMNS, 1, MmaQuarters, CpAsync>>;
                    narrow_mma_e4m3_32x32_n128_fp8 E4m3, narrow_mma_e5m2_32x32_n128_fp8 E5m2: Block, Panel<2, PanelOf<32, 32, B_COLUMNS, 1, MmaFp8, CpAsync>>;
                }
                "nm_narrow" NmParams Narrow {
                    nm_int8_128x256 Int8: Nm, TwoOfFour<1, 4, NmOf<1>>;
                    nm_int8_128x128 Int8: Nm, TwoOfFour<1, 2, NmOf<1>>;
                    nm_mma_int8_128x128 Int8: Nm, TwoOfFour<1, 2, NmOf<1, MmaQuarters, CpAsync>>;
                }
                "dense_live" DenseParams Live {
                    dense_live_f16_128x128 F16, dense_live_bf16_128x128 Bf16: Direct, LiveTile<2, DenseOf<2, 1>>;
                    dense_live_f16_128x128_k2 F16, dense_live_bf16_128x128_k2 Bf16: Direct, LiveTile<2, DenseOf<2, 2>>;
                    dense_live_f16_128x128_k4 F16, dense_live_bf16_128x128_k4 Bf16: Direct, LiveTile<2, DenseOf<2, 4>>;
                    dense_live_f16_128x192 F16, dense_live_bf16_128x192 Bf16: Direct, LiveTile<3, DenseOf<2, 1>>;
                    dense_live_f16_128x256 F16, dense_live_bf16_128x256 Bf16: Direct, LiveTile<4, DenseOf<2, 1>>;
                    dense_live_f16_128x256_k2 F16, dense_live_bf16_128x256_k2 Bf16: Direct, LiveTile<4, DenseOf<2, 2>>;
                    dense_live_f16_128x256_k4 F16, dense_live_bf16_128x256_k4 Bf16: Direct, LiveTile<4, DenseOf<2, 4>>;
                    dense_live_mma_f16_128x128 F16, dense_live_mma_bf16_128x128 Bf16: Direct, LiveTile<2, DenseOf<2, 1, 2, MmaQuarters, CpAsync>>;
                    dense_live_mma_f16_128x256_wide F16, dense_live_mma_bf16_128x256_wide Bf16: Direct, LiveTile<4, DenseOf<2, 1, 2, MmaQuarters, CpAsyncWide>>;
                }
                "dense_csr" DenseCsrParams Product {
                    dense_csr_f16_64x64 F16, dense_csr_bf16_64x64 Bf16: Filled, FilledTile<1, DenseOf<1, 1>>;
                    dense_csr_f16_64x64_k2 F16, dense_csr_bf16_64x64_k2 Bf16: Filled, FilledTile<1, DenseOf<1, 2>>;
                    dense_csr_f16_64x64_k4 F16, dense_csr_bf16_64x64_k4 Bf16: Filled, FilledTile<1, DenseOf<1, 4>>;
                    dense_csr_f16_64x128_k2 F16, dense_csr_bf16_64x128_k2 Bf16: Filled, FilledTile<2, DenseOf<1, 2>>;
                    dense_csr_f16_64x256 F16, dense_csr_bf16_64x256 Bf16: Filled, FilledTile<4, DenseOf<1, 1>>;
                    dense_csr_f16_64x256_k2 F16, dense_csr_bf16_64x256_k2 Bf16: Filled, FilledTile<4, DenseOf<1, 2>>;
                    dense_csr_f16_128x128_k2 F16, dense_csr_bf16_128x128_k2 Bf16: Filled, FilledTile<2, DenseOf<2, 2>>;
                    dense_csr_f16_128x256 F16, dense_csr_bf16_128x256 Bf16: Filled, FilledTile<4, DenseOf<2, 1>>;
                    dense_csr_mma_f16_64x64 F16, dense_csr_mma_bf16_64x64 Bf16: Filled, FilledTile<1, DenseOf<1, 1, 2, MmaQuarters, CpAsync>>;
                    dense_csr_mma_f16_128x128 F16, dense_csr_mma_bf16_128x128 Bf16: Filled, FilledTile<2, DenseOf<2, 1, 2, MmaQuarters, CpAsync>>;
                }
                "dense_conv" DenseConvParams Own {
                    dense_conv_f16_64x64 F16, dense_conv_bf16_64x64 Bf16: Direct, ConvTile<1, DenseOf<1, 1>>;
                    dense_conv_f16_64x64_k4 F16, dense_conv_bf16_64x64_k4 Bf16: Direct, ConvTile<1, DenseOf<1, 4>>;
                    dense_conv_f16_128x64 F16, dense_conv_bf16_128x64 Bf16: Direct, ConvTile<1, DenseOf<2, 1>>;
                    dense_conv_f16_128x128 F16, dense_conv_bf16_128x128 Bf16: Direct, ConvTile<2, DenseOf<2, 1>>;
                    dense_conv_f16_128x128_k2 F16, dense_conv_bf16_128x128_k2 Bf16: Direct, ConvTile<2, DenseOf<2, 2>>;
                    dense_conv_f16_128x128_k4 F16, dense_conv_bf16_128x128_k4 Bf16: Direct, ConvTile<2, DenseOf<2, 4>>;
                    dense_conv_f16_128x256 F16, dense_conv_bf16_128x256 Bf16: Direct, ConvTile<4, DenseOf<2, 1>>;
                    dense_conv_f16_128x256_k2 F16, dense_conv_bf16_128x256_k2 Bf16: Direct, ConvTile<4, DenseOf<2, 2>>;
                    dense_conv_f16_128x256_k4 F16, dense_conv_bf16_128x256_k4 Bf16: Direct, ConvTile<4, DenseOf<2, 4>>;
                    dense_conv_mma_f16_64x64 F16, dense_conv_mma_bf16_64x64 Bf16: Direct, ConvTile<1, DenseOf<1, 1, 2, MmaQuarters, CpAsync>>;
                    dense_conv_mma_f16_128x128 F16, dense_conv_mma_bf16_128x128 Bf16: Direct, ConvTile<2, DenseOf<2, 1, 2, MmaQuarters, CpAsync>>;
                    dense_conv_mma_f16_128x256_wide F16, dense_conv_mma_bf16_128x256_wide Bf16: Direct, ConvTile<4, DenseOf<2, 1, 2, MmaQuarters, CpAsyncWide>>;
                }
            }
        }
    };
}
