"""Progress judged by a vision-language model behind an HTTP endpoint in OpenAI's form, as vLLM and SGLang serve it.

export VLM_URL=http://localhost:8000/v1/chat/completions VLM_MODEL=Qwen/Qwen3-VL-8B-Instruct
counterpoint compare runs/mine vlm_reward:progress --data DATA --out runs/compared
"""

import base64
import io
import json
import os
import urllib.request

import numpy as np
from PIL import Image

ASK = "These are {n} frames of a robot's video, in order. Task: {task}. How far is it done in each frame, from 0 to 1? "
FORM = "Answer with a JSON list of {n} numbers and nothing else."


def progress(frames, instruction):
    """Return progress [T] for frames uint8 [T, H, W, 3]: asked at eight of them, interpolated between."""
    at, content = np.unique(np.linspace(0, len(frames) - 1, 8).round().astype(int)), []
    for step in at:
        Image.fromarray(frames[step]).save(jpeg := io.BytesIO(), "JPEG")
        url = "data:image/jpeg;base64," + base64.b64encode(jpeg.getvalue()).decode()
        content.append({"type": "image_url", "image_url": {"url": url}})
    content.append({"type": "text", "text": (ASK + FORM).format(n=len(at), task=instruction)})
    asked = {"model": os.environ["VLM_MODEL"], "messages": [{"role": "user", "content": content}]}
    request = urllib.request.Request(
        os.environ["VLM_URL"], json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    return np.interp(np.arange(len(frames)), at, json.loads(answer))


progress.progress = True  # its values are progress in [0, 1]
