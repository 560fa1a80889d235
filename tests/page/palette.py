"""Pictures of at most 256 colours: a third of the bytes, and nobody sees it. Chromium decodes, numpy chooses them."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from playwright.sync_api import Page

DECODE = """async (png) => {
  const picture = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
  const { width, height } = picture;
  const context = new OffscreenCanvas(width, height).getContext("2d");
  context.drawImage(picture, 0, 0);
  const bytes = context.getImageData(0, 0, width, height).data;
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return [width, height, btoa(text)];
}"""
COLOURS, ROUNDS = 256, 12


def reduced(png: bytes, page: Page) -> bytes:
    """The picture with a palette. page: any page of Chromium, for its decoder."""
    width, height, pixels = page.evaluate(DECODE, base64.b64encode(png).decode())
    colours = np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(-1, 4)[:, :3]
    distinct, place, count = np.unique(colours, axis=0, return_inverse=True, return_counts=True)
    palette = chosen(distinct.astype(np.float32), np.sqrt(count))
    index = nearest(distinct.astype(np.float32), palette).astype(np.uint8)[place.reshape(height, width)]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), index], axis=1)  # a filter byte per row: none
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", palette.round().astype(np.uint8).tobytes()))
    parts += ((b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def chosen(colours: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """k-means from the most frequent colours and those that are far from them. colours: [n, 3]; weight: [n]."""
    if len(colours) <= COLOURS:
        return colours
    palette = colours[np.argsort(-weight, kind="stable")[: COLOURS // 2]]
    while len(palette) < COLOURS:
        far = np.argmax(((colours - palette[nearest(colours, palette)]) ** 2).sum(1) * weight)
        palette = np.concatenate([palette, colours[far : far + 1]])
    for _ in range(ROUNDS):
        place = nearest(colours, palette)
        total = np.bincount(place, weight, COLOURS)
        for channel in range(3):
            summed = np.bincount(place, weight * colours[:, channel], COLOURS)
            palette[:, channel] = np.where(total > 0, summed / np.maximum(total, 1e-9), palette[:, channel])
    return palette


def nearest(colours: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """Index of the palette's nearest colour, of each."""
    far = (palette**2).sum(1)[None, :] - 2 * colours @ palette.T
    return far.argmin(1)
