
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

// A flag is written at once; a box whose flag could not be written goes back.
const asked = async (address, method) => {
  const refused = document.querySelector("[data-refused]");
  try {
    const answer = await fetch(address, { method });
    const text = await answer.text();
    refused.hidden = answer.ok;
    if (answer.ok) return text;
    refused.textContent = text;
  } catch (error) {
    refused.hidden = false;
    refused.textContent = "The server does not answer. Is it still running?";
  }
  return null;
};
for (const box of document.querySelectorAll("[data-flag]"))
  box.addEventListener("change", async () => {
    box.disabled = true;
    const count = await asked(box.dataset.flag, box.checked ? "PUT" : "DELETE");
    if (count === null) box.checked = !box.checked;
    else for (const shown of document.querySelectorAll("[data-flagged]")) shown.textContent = count;
    box.disabled = false;
  });
for (const button of document.querySelectorAll("[data-export]"))
  button.addEventListener("click", async () => {
    const text = await asked(button.dataset.export, "GET");
    if (text === null) return;
    const shown = document.querySelector("header pre"), told = document.querySelector("[data-exported]");
    shown.textContent = text;
    shown.hidden = !text;
    told.textContent = "";
    if (!text) { told.textContent = "Flag an episode first."; return; }
    try {
      await navigator.clipboard.writeText(text);
      told.textContent = "Copied.";
    } catch (error) {  // not permitted
      getSelection().selectAllChildren(shown);
      told.textContent = "Selected: copy it from here.";
    }
  });
window.addEventListener("pageshow", (event) => { if (event.persisted && document.querySelector("[data-flag]")) location.reload(); });
