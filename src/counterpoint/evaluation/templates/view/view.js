
// A dropped or chosen video goes to the server, which answers with the address of its page.
for (const form of document.querySelectorAll("form.try")) {
  const zone = form.querySelector(".drop");
  if (!zone) continue;
  const chosen = zone.querySelector("input"), label = zone.querySelector("span");
  const button = form.querySelector("button"), message = form.querySelector("[role=alert]");
  const name = () => { if (chosen.files.length) label.textContent = chosen.files[0].name; };
  chosen.addEventListener("change", name);
  document.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("over"); });
  document.addEventListener("dragleave", () => zone.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    if (event.dataTransfer.files.length) { chosen.files = event.dataTransfer.files; name(); }
  });
  form.addEventListener("submit", async (event) => {
    const file = chosen.files[0];
    if (!file && location.pathname !== "/") return;  // the same video under other words
    event.preventDefault();
    const say = (text) => { message.textContent = text; message.hidden = false; };
    if (!file) return say("Choose a video first.");
    if (file.size > Number(zone.dataset.largest))
      return say(`${file.name}: found ${Math.round(file.size / 1e6)} MB; expected ${Math.round(zone.dataset.largest / 1e6)} MB or less. Hint: cut it`);
    message.hidden = true;
    button.disabled = true;
    label.textContent = `Reading ${file.name} \u2026`;
    try {
      const headers = { "Content-Type": "application/octet-stream" };
      const answer = await fetch("/videos?name=" + encodeURIComponent(file.name), { method: "POST", headers, body: file });
      const text = await answer.text();
      if (!answer.ok) return say(text);
      const words = [...new FormData(form)].filter(([key]) => key === "instruction" || key === "against");
      location.assign(text + "?" + new URLSearchParams(words));
    } catch (error) {
      say("The server does not answer. Is it still running?");
    } finally {
      button.disabled = false;
      name();
    }
  });
}
